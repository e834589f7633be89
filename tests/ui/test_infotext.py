"""A picture's parameters as text: written, read back, and read from the WebUI's text."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ov_backend.ui.choices import Choices
from ov_backend.ui.infotext import Parameters, ran_where, refused_choices

LINE = st.text(st.characters(blacklist_categories=("Cs", "Cc", "Zl", "Zp")), max_size=30).map(str.strip)
PARAMETERS = st.builds(
    Parameters,
    prompt=st.lists(LINE.filter(lambda line: not line.startswith("Negative prompt:")), max_size=3).map("\n".join).map(str.strip),
    negative_prompt=LINE,
    steps=st.integers(1, 1000),
    guidance=st.floats(0, 30, allow_nan=False).map(lambda x: round(x, 2)),
    seed=st.integers(0, 1 << 32),
    width=st.integers(8, 512).map(lambda x: x * 8),
    height=st.integers(8, 512).map(lambda x: x * 8),
    batch=st.integers(1, 16),
    strength=st.none() | st.sampled_from([0.05, 0.6, 1.0]),
)


@settings(deadline=None)
@given(PARAMETERS, st.sampled_from(["a model", 'x, y: "z"', "<img src=x onerror=y>"]))
def test_written_parameters_are_read_back(parameters: Parameters, model: str) -> None:
    config = '{"DEVICE_PROPERTIES": {"CPU": {"NUM_STREAMS": 2}}, "PERF_COUNT": true}'
    choices = Choices("AUTO:GPU,CPU", "f32", vae=False, config_json=config)
    assert Parameters.from_text(parameters.as_text(model, choices)) == (parameters, choices)


@settings(deadline=None)
@given(st.text())
def test_any_text_gives_parameters(text: str) -> None:
    parameters, _ = Parameters.from_text(text)
    assert isinstance(parameters.steps, int)


@pytest.mark.parametrize("repeated", ["x", " ", "a:", 'a:"', 'a:"\\', "x y ", ",", "a: 1,", 'a: "b, c",'])
@pytest.mark.parametrize("before", ["", "a: 1, b: 2, OpenVINO: "])
def test_a_text_of_any_length_is_read_in_linear_time(before: str, repeated: str) -> None:
    text = before + repeated * (40_000 // len(repeated))
    start = time.monotonic()
    Parameters.from_text(text)
    refused_choices(text)
    assert time.monotonic() - start < 5


def test_the_text_of_the_webui_is_read() -> None:
    text = (
        "a cat, <lora:x:1>\nsecond line\nNegative prompt: blurry,\nlow\nSteps: 20, Sampler: DPM++ 2M, Schedule type: Karras,"
        ' CFG scale: 6.5, Seed: 42, Size: 512x768, Model hash: abc, Model: m, Script: Accelerate with OpenVINO,'
        ' OpenVINO: "ran=UNet, VAE, text encoder; precision=f32", Version: v1.10.1'
    )
    parameters, choices = Parameters.from_text(text)
    assert (parameters.prompt, parameters.negative_prompt) == ("a cat, <lora:x:1>\nsecond line", "blurry,\nlow")
    assert (parameters.steps, parameters.guidance, parameters.seed) == (20, 6.5, 42)
    assert (parameters.width, parameters.height, parameters.strength) == (512, 768, None)
    assert choices == Choices(precision="f32")


def test_the_text_says_what_ran_where() -> None:
    def network(calls: int, fallbacks: int = 0, by_blocks: int = 0, state: str = "") -> dict[str, Any]:
        counts = {"run_fallbacks": fallbacks, "run_by_blocks": by_blocks}
        reasons = {name: {"a reason": count} if count else {} for name, count in counts.items()}
        return {"run_calls": calls, **reasons, "int8": {"state": state} if state else {}}

    unet, encoder, decoder, text_encoder = network(8, state="on"), network(0, 1), network(1), network(0, 2)
    networks = {"unet": unet, "vae_encode": encoder, "vae_decode": decoder, "text_encoder": text_encoder}
    assert ran_where(networks, Choices()) == "UNet in int8, VAE partly, text encoder in PyTorch"
    assert ran_where(networks, Choices(vae=False)) == "UNet in int8, text encoder in PyTorch"
    assert ran_where({"unet": network(3, by_blocks=3)}, Choices()) == "UNet by its blocks"
    assert ran_where({"unet": network(0, 4, state="off")}, Choices()) == "UNet in PyTorch"
    assert ran_where({"unet": network(3), "vae_decode": network(0)}, Choices()) == "UNet", "it was not called"
    last = Parameters("p", guidance=4).as_text("m", Choices(precision="int8"), "UNet in int8").split("\n")[-1]
    assert last.endswith("OpenVINO: ran=UNet in int8; precision=int8")
    assert "CFG scale: 4, " in last
    assert Parameters.from_text(f"p\n{last}")[1] == Choices(precision="int8")


def test_a_prompt_alone_is_a_prompt() -> None:
    assert Parameters.from_text("only a prompt, Steps: many") == (Parameters("only a prompt, Steps: many"), None)
