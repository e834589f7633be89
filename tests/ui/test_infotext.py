"""A picture's parameters as text: written, read back, and read from the WebUI's text."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from ov_backend.ui.choices import Choices
from ov_backend.ui.infotext import Parameters

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


def test_a_prompt_alone_is_a_prompt() -> None:
    assert Parameters.from_text("only a prompt, Steps: many") == (Parameters("only a prompt, Steps: many"), None)
