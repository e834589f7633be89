"""``accelerate`` on real diffusers pipelines: the picture PyTorch would have drawn, and nothing left behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import ov_backend
from ov_backend import Settings
from ov_backend.errors import PatchError

pytest.importorskip("diffusers")

from tests.helpers.diffusers_pipelines import tiny

ROOT = Path(__file__).parents[3]
KINDS = ["sd1", "sd2", "img2img", "sdxl"]
STEPS = 3
KEYS = {"captures", "graph_hits", "compiles", "calls", "fallbacks", "seconds", "signatures"}


def draw(pipe: Any, size: tuple[int, int] = (16, 24), **arguments: Any) -> np.ndarray:
    """One picture in 0 to 1, [height, width, 3], of a seed that is always the same."""
    given: dict[str, Any] = {
        "prompt": "a red fox in the snow",
        "negative_prompt": "blurred",
        "num_inference_steps": STEPS,
        "guidance_scale": 4.0,
        "generator": torch.Generator().manual_seed(5),
        "output_type": "np",
    }
    if "Img2Img" in type(pipe).__name__:
        given["image"] = torch.rand(1, 3, *size, generator=torch.Generator().manual_seed(6))
        given["strength"] = 1.0
    else:
        given |= {"height": size[0], "width": size[1]}
    return pipe(**{**given, **arguments}).images[0]


def assert_same_picture(actual: np.ndarray, expected: np.ndarray) -> None:
    assert np.isfinite(actual).all()
    assert expected.std() > 0.02, "a flat picture would prove nothing"
    assert np.linalg.norm(actual - expected) <= 1e-3 * np.linalg.norm(expected)


def own_state(pipe: Any) -> dict[str, dict[str, Any]]:
    """The instance attributes of every module of the pipeline."""
    return {
        f"{name}.{path}": dict(vars(module))
        for name, part in pipe.components.items()
        if isinstance(part, torch.nn.Module)
        for path, module in part.named_modules()
    }


@pytest.mark.parametrize("kind", KINDS)
def test_picture_is_pytorchs_and_nothing_is_left_behind(kind: str, strict: Callable[..., Settings]) -> None:
    pipe = tiny(kind)
    expected = draw(pipe)
    before = own_state(pipe)
    with ov_backend.accelerate(pipe, strict()) as accelerated:
        actual = draw(pipe)
        stats = accelerated.stats()
    assert_same_picture(actual, expected)
    used = {"unet", "vae_decode", "text_encoder"}
    used |= {"vae_encode"} if kind == "img2img" else set()
    used |= {"text_encoder_2"} if kind == "sdxl" else set()
    assert {name for name, values in stats.items() if values["calls"]} == used
    for name in used:
        assert stats[name].keys() >= KEYS
        # one for all steps, also of arguments that are Python numbers, and of both prompts
        assert (stats[name]["captures"], stats[name]["compiles"], stats[name]["fallbacks"]) == (1, 1, {})
    assert stats["unet"]["calls"] == STEPS
    after = own_state(pipe)
    assert {name: attributes.keys() for name, attributes in after.items()} == {n: a.keys() for n, a in before.items()}
    for name, attributes in after.items():  # flags of the modules, and the very same tensors
        assert all(value is before[name][key] or value == before[name][key] for key, value in attributes.items())
    for module in (pipe.unet, pipe.text_encoder, pipe.vae.decoder):
        assert "forward" not in vars(module)
        assert module.forward.__func__ is type(module).forward
    np.testing.assert_array_equal(draw(pipe), expected)


def test_sizes_back_and_forth_compile_once_each(strict: Callable[..., Settings]) -> None:
    pipe = tiny("sd1")
    sizes = [(16, 16), (24, 16), (16, 16), (24, 16)]
    expected = {size: draw(pipe, size) for size in sizes}
    with ov_backend.accelerate(pipe, strict()) as accelerated:
        for size in sizes:
            assert_same_picture(draw(pipe, size), expected[size])
        stats = accelerated.stats()
    assert [stats[name]["compiles"] for name in ("unet", "vae_decode", "text_encoder")] == [2, 2, 1]


def test_prompts_of_unequal_length(strict: Callable[..., Settings]) -> None:
    """Embeddings longer than 77 tokens, given by hand as prompt-weighting tools do, and prompts without a negative one."""
    pipe = tiny("sd1")
    generator = torch.Generator().manual_seed(1)
    long = [torch.randn(1, 154, 32, generator=generator) for _ in range(2)]
    embeds = {"prompt": None, "negative_prompt": None, "prompt_embeds": long[0], "negative_prompt_embeds": long[1]}
    cases: list[dict[str, Any]] = [{}, {"negative_prompt": "a very long list of things not to be seen " * 4}, embeds]
    cases += [{"guidance_scale": 1.0}, {"num_images_per_prompt": 2}]
    expected = [draw(pipe, **case) for case in cases]
    with ov_backend.accelerate(pipe, strict()) as accelerated:
        for case, picture in zip(cases, expected):
            assert_same_picture(draw(pipe, **case), picture)
        assert accelerated.stats()["unet"]["compiles"] == 4  # 77 tokens, 154 tokens, no uncond, two pictures


def test_tiling_and_slicing_keep_working(strict: Callable[..., Settings]) -> None:
    pipe = tiny("sd1")
    pipe.vae.enable_tiling()
    pipe.vae.enable_slicing()
    pipe.vae.tile_latent_min_size, pipe.vae.tile_sample_min_size = 8, 16
    expected = draw(pipe, (32, 32), num_images_per_prompt=2)
    with ov_backend.accelerate(pipe, strict()) as accelerated:
        assert_same_picture(draw(pipe, (32, 32), num_images_per_prompt=2), expected)
        assert accelerated.stats()["vae_decode"]["calls"] > 2


def test_second_accelerate_is_refused_and_changes_nothing(strict: Callable[..., Settings]) -> None:
    pipe = tiny("sd1")
    with ov_backend.accelerate(pipe, strict()) as first:
        with pytest.raises(PatchError, match="already accelerated"):
            ov_backend.accelerate(pipe, strict())
        draw(pipe)
        assert first.stats()["unet"]["calls"] == STEPS
        first.restore()
        first.restore()
    with ov_backend.accelerate(pipe, strict()) as again:
        draw(pipe)
        assert again.stats()["unet"]["graph_hits"] == 1


def test_another_scheduler_needs_no_other_graph(strict: Callable[..., Settings]) -> None:
    """Schedulers hand over timesteps as int64 or float32 tensors, of no dimension; each kind is one graph."""
    from diffusers import DPMSolverMultistepScheduler, EulerDiscreteScheduler

    pipe = tiny("sd1")
    with ov_backend.accelerate(pipe, strict()) as accelerated:
        for scheduler in (DPMSolverMultistepScheduler, EulerDiscreteScheduler):
            pipe.scheduler = scheduler.from_config(pipe.scheduler.config)
            for steps in (2, 4):
                draw(pipe, num_inference_steps=steps)
        assert accelerated.stats()["unet"]["captures"] <= 2


def test_python_numbers_as_timesteps_are_no_new_capture_each(strict: Callable[..., Settings]) -> None:
    unet = tiny("sd1").unet
    sample, text = torch.randn(1, 4, 8, 8), torch.randn(1, 77, 32)
    steps = [999, 500, 0.5, 1, 2.25]
    expected = [unet(sample, step, encoder_hidden_states=text).sample for step in steps]
    with ov_backend.accelerate({"unet": unet}, strict()) as accelerated:
        for step, wanted in zip(steps, expected):
            actual = unet(sample, step, encoder_hidden_states=text).sample
            assert torch.linalg.norm(actual - wanted) <= 1e-3 * torch.linalg.norm(wanted)
        assert accelerated.stats()["unet"]["captures"] == 2  # whole numbers, fractions


_SECOND_PROCESS = """
import json, sys
import ov_backend
from tests.helpers.diffusers_pipelines import tiny
from tests.integration.fidelity.test_pipelines import draw
pipe = tiny("sd1")
settings = ov_backend.Settings(precision="f32", cache_dir=sys.argv[1], fallback="raise")
with ov_backend.accelerate(pipe, settings) as accelerated:
    picture = draw(pipe)
    print(json.dumps({"stats": accelerated.stats(), "picture": picture.tolist()}))
"""


def test_second_process_neither_traces_nor_converts(strict: Callable[..., Settings], tmp_path: Path) -> None:
    settings = strict()
    with ov_backend.accelerate(pipe := tiny("sd1"), settings):
        expected = draw(pipe)
    command = [sys.executable, "-c", _SECOND_PROCESS, str(settings.cache_dir)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    answer = json.loads(done.stdout.splitlines()[-1])
    used = {name: values for name, values in answer["stats"].items() if values["calls"]}
    assert used.keys() == {"unet", "vae_decode", "text_encoder"}
    assert all((values["captures"], values["graph_hits"]) == (0, 1) for values in used.values())
    assert_same_picture(np.array(answer["picture"], dtype=np.float32), expected)
