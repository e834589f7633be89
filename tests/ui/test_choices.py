"""The user's choices: read from values of any type, written into a picture, read back."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ov_backend.ui.choices import Choices, switch_of
from ov_backend.ui.panel import paste_fields

ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
PROPERTIES = st.fixed_dictionaries(
    {},
    optional={
        "PERFORMANCE_HINT": st.sampled_from(["LATENCY", "THROUGHPUT"]),
        "NUM_STREAMS": st.integers(0, 64) | st.just("AUTO"),
        "ENABLE_CPU_PINNING": st.booleans(),
        "CPU_SPARSE_WEIGHTS_DECOMPRESSION_RATE": st.floats(0, 1),
        "DEVICE_PROPERTIES": st.just({"GPU.0": {"GPU_QUEUE_PRIORITY": "LOW"}}),
    },
)
CHOICES = st.builds(
    Choices,
    device=st.sampled_from(["CPU", "GPU.1", "AUTO", "AUTO:GPU,CPU", "HETERO:GPU.0,CPU", "AUTO:-GPU"]),
    precision=st.sampled_from(["auto", "f32", "bf16", "f16", "int8"]),
    unet=st.booleans(),
    vae=st.booleans(),
    text_encoder=st.booleans(),
    model_caching=st.booleans(),
    memory_mb=st.integers(0, 1 << 24),
    low_memory=st.sampled_from(["auto", "on", "off"]),
    config_json=PROPERTIES.map(lambda properties: json.dumps(properties, sort_keys=True) if properties else ""),
)


def test_the_values_of_the_panel_are_read() -> None:
    values = ["GPU.0 — Intel Arc", "bf16", True, False, True, False, 4096.0, ' {"NUM_STREAMS": 1, "PERF_COUNT": "yes"} ']
    choices, messages = Choices.from_args(values)
    assert messages == []
    assert choices == Choices("GPU.0", "bf16", True, False, True, False, 4096, '{"NUM_STREAMS": 1, "PERF_COUNT": true}')


@pytest.mark.parametrize("args", [None, [], ()])
def test_no_arguments_are_the_defaults_without_a_message(args: Any) -> None:
    assert Choices.from_args(args) == (Choices(), [])


@pytest.mark.parametrize(
    "place,value,expected",
    [
        (0, "my computer", "an OpenVINO device such as"),
        (0, 7, "an OpenVINO device such as"),
        (1, "fp8", "one of auto, f32, bf16, f16, int8"),
        (2, None, "true or false"),
        (3, 2, "true or false"),
        (6, -1, "Memory for compiled networks in MiB: -1 must be a whole number of MiB from 0 to 16777216. 0 is used instead."),
        (6, float("nan"), "a whole number of MiB from 0"),
        (6, True, "a whole number of MiB from 0"),
        (7, "[1]", "a JSON object of OpenVINO properties"),
        (7, "{", "a JSON object of OpenVINO properties"),
        (7, "[" * 4000, "a JSON object of OpenVINO properties"),
        (7, '{"CACHE_DIR": "/etc"}', "Further OpenVINO properties: 'CACHE_DIR' is not allowed; remove it."),
        (7, {"DEVICE_PROPERTIES": {"CPU": {"WEIGHTS_PATH": "x"}}}, "'WEIGHTS_PATH' of CPU is not allowed; remove it."),
        (7, '{"NUM_STREAMS": [1]}', "NUM_STREAMS is a whole number from 0 to 64"),
    ],
)
def test_a_value_that_makes_no_sense_becomes_the_default_and_one_message(place: int, value: object, expected: str) -> None:
    args: list[object] = ["CPU", "auto", True, True, True, True, 0, ""]
    args[place] = value
    choices, messages = Choices.from_args(args)
    assert choices == Choices()
    assert len(messages) == 1
    assert expected in messages[0]
    assert len(messages[0]) < 350


def test_a_wrong_number_of_arguments_is_reported() -> None:
    choices, messages = Choices.from_args(["CPU", "f32"], Choices(unet=False))
    assert choices == Choices(precision="f32", unet=False)
    expected = "device, precision, unet, vae, text_encoder, model_caching, memory_mb, config_json, low_memory"
    assert messages == [f"2 arguments were given; the script takes 9: {expected}."]


def test_the_arguments_of_earlier_versions_lack_low_memory() -> None:
    assert Choices.from_args(["CPU", "f32", True, True, True, True, 0, ""]) == (Choices(precision="f32"), [])


@settings(deadline=None)
@given(st.lists(ANYTHING, max_size=12) | ANYTHING)
def test_arguments_of_any_type_give_choices(args: object) -> None:
    choices, _ = Choices.from_args(args)
    settings = choices.settings("folder")
    assert settings.device == choices.device
    assert Choices.from_args([getattr(choices, name) for name in vars(choices)]) == (choices, [])


@settings(deadline=None)
@given(CHOICES)
def test_a_picture_gives_the_choices_back(choices: Choices) -> None:
    assert Choices.from_infotext(choices.as_infotext()) == choices
    assert Choices.from_infotext(f"ran=UNet, VAE; {choices.as_infotext()}") == choices


@settings(deadline=None)
@given(ANYTHING)
def test_any_field_of_a_picture_gives_choices(text: object) -> None:
    assert isinstance(Choices.from_infotext(text), Choices)


def test_only_what_is_not_default_is_written() -> None:
    assert Choices().as_infotext() == "on"
    assert Choices(precision="f32", vae=False).as_infotext() == "precision=f32; vae=off"


def test_the_settings_hold_all_choices() -> None:
    settings = Choices("AUTO", "f16", model_caching=False, memory_mb=7, config_json='{"NUM_STREAMS": 2}').settings("somewhere")
    assert (settings.device, settings.precision, settings.memory_mb) == ("AUTO", "f16", 7)
    assert (settings.model_caching, settings.cache_dir, settings.config) == (False, "somewhere", {"NUM_STREAMS": 2})


def test_a_picture_sets_the_panel_and_one_without_the_field_leaves_it_as_it_is() -> None:
    names = list(vars(Choices()))
    fields = paste_fields(names)
    assert [component for component, _ in fields] == names
    values = {name: read({"OpenVINO": "precision=f32; vae=off; memory_mb=512"}) for name, read in fields}
    assert (values["precision"], values["vae"], values["unet"], values["memory_mb"]) == ("f32", False, True, 512)
    assert values["device"].startswith("CPU")
    assert [read({"Steps": "20"}) for _, read in fields] == [None] * 9


def test_every_network_belongs_to_a_switch() -> None:
    roles = ("unet", "transformer", "vae_encode", "vae_decode", "text_encoder", "text_encoder_2", "controlnet")
    assert [switch_of(role) for role in roles] == ["unet", "unet", "vae", "vae", "text_encoder", "text_encoder", "unet"]
