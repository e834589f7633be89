"""Generations that other OpenVINO extensions fail at: lengths, LoRAs, overflow, hires fix, the API, no OpenVINO."""

from __future__ import annotations

import sys
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from tests.helpers.alone import alone
from tests.helpers.extent import some
from tests.hosts.webui.conftest import ALL, TITLE, arguments, engine_stats, largest_difference, ran, ran_text, start_host

LONG = "red brick house in a green valley under a blue sky "


@pytest.mark.parametrize("lengths", some([(3, 90)], [(3, 90), (90, 3), (160, 3), (90, 90)]), ids=str)
def test_prompts_of_different_lengths_give_the_same_picture(lengths: tuple[int, int], compare: Any) -> None:
    """77 x 154 tokens, 154 x 77, 231 x 77, 154 x 154."""
    words = (LONG * 20).split()
    compare(prompt=" ".join(words[: lengths[0]]), negative_prompt=" ".join(words[: lengths[1]]))


UNCOND: list[dict[str, Any]] = [{"s_min_uncond": 20.0}, {"skip_early_cond": 0.5}, {"batch_cond_uncond": False}]


@pytest.mark.parametrize("values", some(UNCOND[:1], UNCOND), ids=str)
def test_uncond_may_be_dropped_in_mid_run(values: dict[str, Any], compare: Any) -> None:
    compare(prompt="a cat", negative_prompt="blurry", steps=5, override_settings=values)


def test_a_lora_follows_its_strength_up_and_down(compare: Any) -> None:
    tags = ("", "<lora:first:1>", "<lora:first:0.5>", "<lora:first:1> <lora:second:0.7>", "")
    pictures = [compare(prompt=f"a cat {tag}")[1] for tag in tags]
    assert min(largest_difference(a, b) for a, b in pairwise(pictures)) > 2, "a change of LoRA changes the picture"
    assert largest_difference(pictures[0], pictures[4]) == 0


def test_a_lora_stays_right_over_a_change_of_checkpoint(compare: Any) -> None:
    compare(prompt="a cat <lora:first:1>")
    compare(prompt="a cat <lora:first:1>", override_settings={"sd_model_checkpoint": "b"})
    compare(prompt="a cat", override_settings={"sd_model_checkpoint": "b"})
    compare(prompt="a cat")


def test_a_lora_needs_no_capture(compare: Any) -> None:
    def captures() -> dict[str, int]:
        return {name: stats["captures"] + stats["graph_hits"] for name, stats in engine_stats().items()}

    compare(prompt="a cat")
    before = captures()
    compare(prompt="a cat <lora:third:0.4>")
    assert captures() == before


def test_a_compiled_graph_refuses_another_shape(compare: Any, host: SimpleNamespace) -> None:
    from ov_backend.core.errors import InputMismatch
    from ov_backend.hosts.webui.session import session

    compare(prompt="a cat")
    compare(prompt="a cat", width=48, height=64)
    assert session.engine is not None
    for key in session.engine.compiled:
        program = session.engine.compiled.peek(key).value.program
        inputs = next(iter(program.parts.values())).inputs
        tensors = [torch.zeros(spec.shape, dtype=getattr(torch, spec.dtype)) for spec in inputs]
        tensors[0] = torch.cat([tensors[0], tensors[0]], dim=-1)
        with pytest.raises(InputMismatch, match="compiled"):
            program(tensors)


def test_an_overflow_in_bf16_is_computed_again_in_f32(host: SimpleNamespace) -> None:
    """The last layer overflows in bf16 (largest 3.39e38), but not in f32 (3.40e38)."""
    from ov_backend.core import devices

    if "bf16" not in devices.list_devices()[0].precisions:
        pytest.skip("this CPU has no bf16")
    decoder = host.shared.sd_model.first_stage_model.decoder
    saved = decoder.conv_out.weight.clone(), decoder.conv_out.bias.clone()
    with torch.no_grad():
        decoder.conv_out.weight.zero_()
        decoder.conv_out.bias.copy_(torch.tensor([3.402e38, 1.0, -3.402e38]))
    try:
        off = host.processing.generate(prompt="a cat")
        on = host.processing.generate(TITLE, arguments("bf16"), prompt="a cat")
        second = host.processing.generate(TITLE, arguments("bf16"), prompt="a dog")
        corrections = engine_stats()["vae_decode"]["corrections"]
    finally:
        with torch.no_grad():
            decoder.conv_out.weight.copy_(saved[0])
            decoder.conv_out.bias.copy_(saved[1])
    assert largest_difference(off, on) <= 1
    assert np.array(second.images[0]).max() > 0
    assert list(corrections.values()) == [1], "once, and remembered for this checkpoint"
    assert "computed again in f32" in on.comments


FIELDS: list[dict[str, Any]] = [{"enable_hr": True, "hr_checkpoint_name": "b"}, {"steps": 1}, {"enable_hr": True}]


@pytest.mark.parametrize("fields", some(FIELDS[:2], FIELDS), ids=str)
def test_hires_fix_and_a_single_step_give_the_same_picture(fields: dict[str, Any], compare: Any) -> None:
    compare(prompt="a cat", **fields)


def test_arguments_of_the_api_that_make_no_sense_become_defaults(host: SimpleNamespace) -> None:
    """No page has been opened, so only the API's arguments count; each that makes no sense is reported in a message."""
    off = host.processing.generate(prompt="a cat")
    for args in (None, []):
        on = host.processing.generate(TITLE, args, prompt="a cat")
        assert ran(on) == ran_text(*ALL)
        assert "must be" not in on.comments
    for args in (["no such device!", 7], [None] * 30, ["CPU", "f32", "perhaps"]):
        on = host.processing.generate(TITLE, args, prompt="a cat")
        assert ran(on) == ran_text(*ALL)
        assert "arguments were given" in on.comments
    on = host.processing.generate(TITLE, arguments(vae=False), prompt="a cat")
    assert ran(on) == ran_text("UNet", "text encoder")
    assert largest_difference(off, on) <= 1


def generate_without_openvino() -> tuple[list[str], list[str], int, str]:
    """Titles in both tabs, the number of pictures and the comments; the package is imported anew, and finds no OpenVINO."""
    for name in [name for name in sys.modules if name.partition(".")[0] in ("openvino", "ov_backend")]:
        del sys.modules[name]
    sys.modules["openvino"] = None  # type: ignore[assignment]
    host = start_host(Path("unused"))
    host.sd_hijack.patch_classes()
    host.sd_models.reload_model_weights("a")
    processed = host.processing.generate(TITLE, None, prompt="a cat", steps=1)
    scripts = host.scripts
    return scripts.scripts_txt2img.titles, scripts.scripts_img2img.titles, len(processed.images), processed.comments


def test_without_openvino_the_script_is_listed_and_says_what_to_install() -> None:
    txt2img, img2img, pictures, comments = alone(generate_without_openvino)
    assert txt2img == img2img == [TITLE]
    assert pictures == 1
    assert "pip install openvino" in comments
