"""``accelerate`` on real diffusers pipelines: the picture PyTorch would have drawn, and nothing left behind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import ov_backend
from ov_backend import Settings
from ov_backend.core.errors import PatchError
from ov_backend.pipelines.accelerate import networks_of

pytest.importorskip("diffusers")

from tests.helpers.alone import alone
from tests.helpers.diffusers_pipelines import tiny
from tests.helpers.extent import FULL, some
from tests.helpers.networks import seeded
from tests.helpers.walks import no_walks

Strict = Callable[..., Settings]
KINDS = ["sd1", "sd2", "img2img", "sdxl"]
STEPS = 3
KEYS = {"captures", "graph_hits", "compiles", "calls", "fallbacks", "seconds", "signatures"}


def draw(pipe: Any, size: tuple[int, int] = (16, 24), **changes: Any) -> np.ndarray:
    """The first picture in 0 to 1, [height, width, 3], of a seed that is always the same."""
    arguments: dict[str, Any] = {
        "prompt": "a red fox in the snow",
        "negative_prompt": "blurred",
        "num_inference_steps": STEPS,
        "guidance_scale": 4.0,
        "generator": torch.Generator().manual_seed(5),
        "output_type": "np",
    }
    if "Img2Img" in type(pipe).__name__:
        arguments["image"] = torch.rand(1, 3, *size, generator=torch.Generator().manual_seed(6))
        arguments["strength"] = 1.0
    else:
        arguments |= {"height": size[0], "width": size[1]}
    return pipe(**{**arguments, **changes}).images[0]


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


def assert_restored(pipe: Any, before: dict[str, dict[str, Any]]) -> None:
    """Flags of the modules and the very same tensors are as before, and every forward is its class's."""
    after = own_state(pipe)
    assert {name: state.keys() for name, state in after.items()} == {name: state.keys() for name, state in before.items()}
    for name, state in after.items():
        assert all(value is before[name][key] or value == before[name][key] for key, value in state.items())
    for module in (pipe.unet, pipe.text_encoder, pipe.vae.decoder):
        assert "forward" not in vars(module)
        assert module.forward.__func__ is type(module).forward


def captures_and_compiles(accelerated: Any) -> dict[str, tuple[int, int]]:
    """Captures and compiles of every network so far."""
    return {name: (values["captures"], values["compiles"]) for name, values in accelerated.stats().items()}


@pytest.mark.parametrize("kind", some(["sd1", "sdxl"], KINDS))
def test_pictures_are_pytorchs_and_nothing_is_left_behind(kind: str, strict: Strict) -> None:
    pipe = tiny(kind, shallow=kind != "sd1")  # what is special in these are attention, the VAE's encoder and the time's inputs
    expected = draw(pipe)
    before = own_state(pipe)
    used = {"unet", "vae_decode", "text_encoder"}
    used |= {"vae_encode"} if kind == "img2img" else set()
    used |= {"text_encoder_2"} if kind == "sdxl" else set()
    with ov_backend.accelerate(pipe, strict()) as accelerated:
        with pytest.raises(PatchError, match="already accelerated"):
            ov_backend.accelerate(pipe, strict())
        assert_same_picture(draw(pipe), expected)
        stats = accelerated.stats()
        with no_walks():
            draw(pipe)
        accelerated.restore()
        accelerated.restore()
    assert {name for name, values in stats.items() if values["calls"]} == used
    for name in used:
        assert stats[name].keys() >= KEYS
        # one for all steps, also of arguments that are Python numbers, and of both prompts
        assert (stats[name]["captures"], stats[name]["compiles"], stats[name]["fallbacks"]) == (1, 1, {})
    assert stats["unet"]["calls"] == STEPS
    assert_restored(pipe, before)
    np.testing.assert_array_equal(draw(pipe), expected)


@pytest.mark.parametrize("kind", some([], KINDS))
def test_a_size_on_disk_and_one_that_is_precompiled(kind: str, strict: Strict) -> None:
    pipe = tiny(kind, shallow=kind != "sd1")
    expected, other = draw(pipe), draw(pipe, (24, 16), num_images_per_prompt=2)
    before = own_state(pipe)
    with ov_backend.accelerate(pipe, strict()):
        draw(pipe)
    with ov_backend.accelerate(pipe, strict()) as accelerated:  # the first size is on disk, the second is precompiled
        assert accelerated.precompile([(16, 24)], (2,)) == [(16, 24, 2)]
        counts = captures_and_compiles(accelerated)
        assert_same_picture(draw(pipe, (24, 16), num_images_per_prompt=2), other)
        assert captures_and_compiles(accelerated) == counts, "a precompiled size needs nothing"
        assert_same_picture(draw(pipe), expected)
        stats = accelerated.stats()
    assert [stats["unet"][name] for name in ("captures", "graph_hits", "compiles")] == [1, 1, 2]
    assert not any(values["fallbacks"] for values in stats.values())
    assert_restored(pipe, before)


@torch.no_grad()
def draw_from_the_store(folder: str) -> tuple[np.ndarray, dict[str, Any]]:
    """A picture of a pipeline whose graphs are on disk, and the statistics of the networks that it used."""
    pipe = tiny("sd1", shallow=True)
    settings = Settings(precision="f32", cache_dir=folder, fallback="raise", low_memory="off")
    with ov_backend.accelerate(pipe, settings) as accelerated:
        picture = draw(pipe)
        return picture, {name: values for name, values in accelerated.stats().items() if values["calls"]}


def test_sizes_and_batches_are_compiled_once_each_and_serve_the_next_process(strict: Strict) -> None:
    pipe, settings = tiny("sd1", shallow=True), strict()
    sizes, batches = [(16, 24), (24, 16)], (1, 2) if FULL else (1,)
    cases = [(size, batch) for size in sizes for batch in batches]
    pictures = [draw(pipe, size, num_images_per_prompt=batch) for size, batch in cases]
    unguided = draw(pipe, guidance_scale=1.0)
    begun: list[tuple[int, int, int]] = []
    done: list[tuple[int, int, int]] = []
    with ov_backend.accelerate(pipe, settings) as accelerated:
        for size in sizes * 2:
            assert_same_picture(draw(pipe, size), pictures[cases.index((size, 1))])
        counts = captures_and_compiles(accelerated)
        assert [counts[name][1] for name in ("unet", "vae_decode", "text_encoder")] == [2, 2, 1]
        before = torch.get_rng_state()
        ready = accelerated.precompile(sizes, batches, begin=begun.append, done=done.append)
        assert torch.equal(torch.get_rng_state(), before), "the process's random numbers are as before"
        assert ready == begun == done == [(*size, batch) for size, batch in cases]
        counts = captures_and_compiles(accelerated)
        assert counts["unet"] == (len(cases), len(cases))
        for (size, batch), picture in zip(cases, pictures):
            assert_same_picture(draw(pipe, size, num_images_per_prompt=batch), picture)
        assert captures_and_compiles(accelerated) == counts
        accelerated.precompile([(24, 16)], arguments={"guidance_scale": 1.0})
        counts = captures_and_compiles(accelerated)
        assert counts["unet"] == (len(cases) + 1, len(cases) + 1), "without guidance it is another graph"
        assert_same_picture(draw(pipe, guidance_scale=1.0), unguided)
        assert captures_and_compiles(accelerated) == counts
    picture, stats = alone(draw_from_the_store, settings.cache_dir)
    assert_same_picture(picture, pictures[0])
    assert stats.keys() == {"unet", "vae_decode", "text_encoder"}
    found = {name: (values["captures"], values["graph_hits"]) for name, values in stats.items()}
    if torch.__version__ < "2.2":  # diffusers of that time fills a table at the first picture, which may be another graph
        assert all(captures == 1 for captures, _ in found.values())
    else:
        assert found == dict.fromkeys(stats, (1, 1))


def test_prompts_of_unequal_length(strict: Strict) -> None:
    """Embeddings longer than 77 tokens, given by hand as prompt-weighting tools do, and prompts without a negative one."""
    pipe = tiny("sd1", shallow=True)
    generator = torch.Generator().manual_seed(1)
    long = [torch.randn(1, 154, 32, generator=generator) for _ in range(2)]
    embeds = {"prompt": None, "negative_prompt": None, "prompt_embeds": long[0], "negative_prompt_embeds": long[1]}
    cases: list[dict[str, Any]] = [{}, {"negative_prompt": "a very long list of things not to be seen " * 4}, embeds]
    cases += [{"guidance_scale": 1.0}, {"num_images_per_prompt": 2}] if FULL else []
    expected = [draw(pipe, **case) for case in cases]
    with ov_backend.accelerate({"unet": pipe.unet, "text_encoder": pipe.text_encoder}, strict()) as accelerated:
        for case, picture in zip(cases, expected):
            assert_same_picture(draw(pipe, **case), picture)
        assert accelerated.stats()["unet"]["compiles"] == (4 if FULL else 2)  # 77 tokens, 154 tokens, no uncond, two pictures


def test_tiling_and_slicing_keep_working(strict: Strict) -> None:
    pipe = tiny("sd1", shallow=True)
    pipe.vae.enable_tiling()
    pipe.vae.enable_slicing()
    pipe.vae.tile_latent_min_size, pipe.vae.tile_sample_min_size = 8, 16
    expected = draw(pipe, (32, 32), num_images_per_prompt=2)
    with ov_backend.accelerate({"vae_decode": networks_of(pipe)["vae_decode"]}, strict()) as accelerated:
        assert_same_picture(draw(pipe, (32, 32), num_images_per_prompt=2), expected)
        assert accelerated.stats()["vae_decode"]["calls"] > 2


def test_another_scheduler_needs_no_other_graph(strict: Strict) -> None:
    """Schedulers hand over timesteps as int64 or float32 tensors, of no dimension."""
    from diffusers import DPMSolverMultistepScheduler, EulerDiscreteScheduler

    pipe = tiny("sd1", shallow=True)
    with ov_backend.accelerate({"unet": pipe.unet}, strict()) as accelerated:
        for scheduler in (DPMSolverMultistepScheduler, EulerDiscreteScheduler):
            pipe.scheduler = scheduler.from_config(pipe.scheduler.config)
            for steps in (2, 4):
                draw(pipe, num_inference_steps=steps)
        assert accelerated.stats()["unet"]["captures"] == 1


def test_python_numbers_as_timesteps_are_no_new_capture_each(strict: Strict) -> None:
    unet = tiny("sd1", shallow=True).unet
    sample, text = torch.randn(1, 4, 8, 8), torch.randn(1, 77, 32)
    steps = [999, 500, 0.5, 1, 2.25]
    expected = [unet(sample, step, encoder_hidden_states=text).sample for step in steps]
    with ov_backend.accelerate({"unet": unet}, strict()) as accelerated:
        for step, result in zip(steps, expected):
            actual = unet(sample, step, encoder_hidden_states=text).sample
            assert torch.linalg.norm(actual - result) <= 1e-3 * torch.linalg.norm(result)
        assert accelerated.stats()["unet"]["captures"] == 1


def test_a_timestep_of_which_a_network_takes_the_whole_part_stays_a_python_float(strict: Strict) -> None:
    """UNet2DModel makes an int64 tensor of a Python number; a tensor it takes as it is."""
    from diffusers import UNet2DModel

    levels: dict[str, Any] = {"block_out_channels": (16,), "down_block_types": ("DownBlock2D",), "up_block_types": ("UpBlock2D",)}
    unet = seeded(UNet2DModel(sample_size=8, in_channels=3, out_channels=3, layers_per_block=1, norm_num_groups=8, **levels))
    sample, steps = torch.randn(1, 3, 8, 8), [5, 5.9, 0.9, torch.tensor(0.9)]
    with torch.no_grad():
        expected = [unet(sample, step).sample for step in steps]
        with ov_backend.accelerate({"unet": unet}, strict()):
            for step, result in zip(steps, expected):
                torch.testing.assert_close(unet(sample, step).sample, result, rtol=1e-3, atol=1e-4)
