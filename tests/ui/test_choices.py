"""What a user chose: read from anything, written into a picture, read back."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ov_backend.ui.choices import Choices
from ov_backend.ui.panel import paste_fields

ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
JSON_VALUES = st.text(max_size=12) | st.integers() | st.booleans()
CHOICES = st.builds(
    Choices,
    device=st.sampled_from(["CPU", "GPU.1", "AUTO", "AUTO:GPU,CPU", "HETERO:GPU.0,CPU", "AUTO:-GPU"]),
    precision=st.sampled_from(["auto", "f32", "bf16", "f16"]),
    unet=st.booleans(),
    vae=st.booleans(),
    text_encoder=st.booleans(),
    model_caching=st.booleans(),
    memory_mb=st.integers(0, 1 << 24),
    config_json=st.dictionaries(st.from_regex(r"[A-CG-K_]{1,6}", fullmatch=True), JSON_VALUES, max_size=3).map(
        lambda found: json.dumps(found, sort_keys=True) if found else ""
    ),
)


def test_what_the_page_passes() -> None:
    choices, said = Choices.from_args(["GPU.0 — Intel Arc", "bf16", True, False, True, False, 4096.0, ' {"B": 1, "A": "x"} '])
    assert said == []
    assert choices == Choices("GPU.0", "bf16", True, False, True, False, 4096, '{"A": "x", "B": 1}')


@pytest.mark.parametrize("args", [None, [], ()])
def test_nothing_given_is_no_mistake(args: Any) -> None:
    assert Choices.from_args(args) == (Choices(), [])


@pytest.mark.parametrize(
    "place,value,expected",
    [
        (0, "my computer", "an OpenVINO device such as"),
        (0, 7, "an OpenVINO device such as"),
        (1, "fp8", "one of auto, f32, bf16, f16"),
        (2, None, "true or false"),
        (3, 2, "true or false"),
        (6, -1, "a whole number of MiB from 0"),
        (6, float("nan"), "a whole number of MiB from 0"),
        (6, True, "a whole number of MiB from 0"),
        (7, "[1]", "a JSON object of OpenVINO properties"),
        (7, "{", "a JSON object of OpenVINO properties"),
        (7, "[" * 4000, "a JSON object of OpenVINO properties"),
        (7, '{"CACHE_DIR": "/etc"}', "files or folders are not taken"),
        (7, {"DEVICE_PROPERTIES": {"CPU": {"weights_path": "x"}}}, "files or folders are not taken"),
        (7, '{"A": [1]}', "a text, a number, true or false"),
    ],
)
def test_nonsense_becomes_the_default_and_one_sentence(place: int, value: object, expected: str) -> None:
    args: list[object] = ["CPU", "auto", True, True, True, True, 0, ""]
    args[place] = value
    choices, said = Choices.from_args(args)
    assert choices == Choices()
    assert len(said) == 1
    assert expected in said[0]
    assert len(said[0]) < 300


def test_a_wrong_number_of_arguments_is_said() -> None:
    choices, said = Choices.from_args(["CPU", "f32"], Choices(unet=False))
    assert choices == Choices(precision="f32", unet=False)
    expected = "device, precision, unet, vae, text_encoder, model_caching, memory_mb, config_json"
    assert said == [f"2 arguments were given; the script takes 8: {expected}."]


@settings(deadline=None)
@given(st.lists(ANYTHING, max_size=12) | ANYTHING)
def test_nothing_that_can_be_passed_breaks_it(args: object) -> None:
    choices, _ = Choices.from_args(args)
    settings = choices.settings("folder")
    assert settings.device == choices.device
    assert Choices.from_args([getattr(choices, name) for name in vars(choices)]) == (choices, [])


@settings(deadline=None)
@given(CHOICES)
def test_a_picture_gives_back_what_was_chosen(choices: Choices) -> None:
    assert Choices.from_infotext(choices.as_infotext()) == choices
    assert Choices.from_infotext(f"ran=UNet, VAE; {choices.as_infotext()}") == choices


@settings(deadline=None)
@given(ANYTHING)
def test_any_text_in_a_picture_gives_choices(text: object) -> None:
    assert isinstance(Choices.from_infotext(text), Choices)


def test_only_what_is_not_default_is_written() -> None:
    assert Choices().as_infotext() == "on"
    assert Choices(precision="f32", vae=False).as_infotext() == "precision=f32; vae=off"


def test_settings_carry_all_of_it() -> None:
    settings = Choices("AUTO", "f16", model_caching=False, memory_mb=7, config_json='{"NUM_STREAMS": 2}').settings("somewhere")
    assert (settings.device, settings.precision, settings.memory_mb) == ("AUTO", "f16", 7)
    assert (settings.model_caching, settings.cache_dir, settings.config) == (False, "somewhere", {"NUM_STREAMS": 2})


def test_a_picture_sets_the_panel_and_one_without_the_field_leaves_it() -> None:
    names = list(vars(Choices()))
    fields = paste_fields(names)
    assert [component for component, _ in fields] == names
    given = {name: read({"OpenVINO": "precision=f32; vae=off; memory_mb=512"}) for name, read in fields}
    assert (given["precision"], given["vae"], given["unet"], given["memory_mb"]) == ("f32", False, True, 512)
    assert given["device"].startswith("CPU")
    assert [read({"Steps": "20"}) for _, read in fields] == [None] * 8
