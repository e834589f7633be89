"""Bad input at every entry: one sentence that says what is expected, exit code 2, no traceback, and nothing done."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from ov_backend import OVBackendError, Settings
from ov_backend.core.errors import CheckpointError, SettingsError
from ov_backend.torch_compile import options as torch_compile_options
from ov_backend.ui.choices import Choices
from ov_backend.ui.controller import parse_choices, parse_precompile
from ov_backend.ui.infotext import Parameters, refused_choices

pytest.importorskip("diffusers")

from ov_backend.checkpoint import load_pipeline
from tests.checkpoint.test_values import WRONG as YAML_VALUES
from tests.cli.test_refusals import ENVIRONMENT, LINES
from tests.helpers.refusals import LONG, assert_sentence

# ---------------------------------------------------------------- checkpoint files and YAML


def header(text: str, data: int = 4) -> bytes:
    encoded = text.encode("utf-8", "surrogatepass")
    return len(encoded).to_bytes(8, "little") + encoded + b"\0" * data


def tensor(**changes: Any) -> str:
    return json.dumps({"model.diffusion_model.a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4], **changes}})


FILES: dict[str, bytes] = {
    **{f"bytes {i}": data for i, data in enumerate([b"", b"\0", b"1234567", b"\0" * 8, b"\xff" * 8, b"\xff" * 100, b"PK\3\4",
        b"GGUF" * 9])},
    **{f"text {i}": data for i, data in enumerate([b"<!DOCTYPE html>", b"version https://git-lfs.github.com/spec/v1\n",
        b"\x80\x04..", b"{}"])},
    **{f"length {length}": length.to_bytes(8, "little") + b"{}" for length in (1, 3, 1 << 20, 100 << 20, (100 << 20) + 1,
        1 << 63)},
    **{f"no header {i}": header(text) for i, text in enumerate(["", "[]", "null", "1", "{", "{]", '{"a"}', '{"a":}', '{"a":1}',
        '{"a":{}'])},
    **{f"no entry {i}": header('{"a":' + text + "}") for i, text in enumerate(["{}", "[]", "null", '{"dtype":"F32"}',
        '{"shape":[1]}'])},
    **{f"shape {i}": header(tensor(shape=shape)) for i, shape in enumerate([[-1], [2], [1.0], ["1"], [True], None, 1, [[1]],
        [1] * 99, [1 << 60]])},
    **{f"offsets {i}": header(tensor(data_offsets=o)) for i, o in enumerate([[], [0], [4, 0], [0, 4, 8], [0, 1 << 60], [-4, 0],
        None, ["0", "4"]])},
    **{f"dtype {i}": header(tensor(dtype=dtype)) for i, dtype in enumerate(["F64", "I8", None, 1, []])},
    "two headers": header(tensor() + tensor()),
    "metadata of numbers": header('{"__metadata__":{"a":1}}'),
    "metadata that is a list": header('{"__metadata__":[]}'),
    "no tensors": header("{}", 0),
    "something behind": header(tensor(), 5),
    "too short": header(tensor(), 3),
    "a surrogate": header('{"\ud800":' + tensor()[30:]),
    "a null in the name": header(tensor().replace("a", "\0", 1)),
    "deep": header("[" * 50000),
    "an unknown network": header(tensor()),
}


@pytest.mark.parametrize("name", FILES)
def test_a_bad_checkpoint_file_is_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(FILES[name])
    with pytest.raises(CheckpointError) as refused:
        load_pipeline(path)
    assert_sentence(str(refused.value))


# ---------------------------------------------------------------- routes, script arguments, pictures

BODIES: list[Any] = [None, 1, "x", [], {}, {"sizes": None}, {"sizes": {}}, {"sizes": "64x64"}, {"sizes": [[]]}, {"sizes": [[64,
    64, 64]]}]
BODIES += [{"sizes": [[64, value]]} for value in (None, "64", 64.0, True, -64, 0, 7, 1 << 70, [], {}, math.nan)]
BODIES += [{"sizes": [[64, 64]], "batch": value} for value in (None, "1", 1.0, True, 0, -1, 17, 1 << 70, [], {})]
BODIES += [{"sizes": [[64, 64]], "choices": value} for value in (1, "x", [], True, {"x": 1}, {"__class__": 1}, {LONG: 1})]
BODIES += [{"sizes": [[4096, 4096]], "batch": 2}, {"sizes": [[64, 64]] * 17}, {"sizes": [[64, 64]], "path": "/etc"}]
VALUES: dict[str, list[Any]] = {
    "device": [None, 1, True, [], {}, "", " ", "no device!", "CPU;rm", "../x", LONG, "CPU:", "AUTO:GPU,", "é", b"CPU",
        "CPU\n"[:0]],
    "precision": [None, 1, [], "", "f8", "fp32", "F 32", LONG, b"f32"],
    "unet": [None, 2, -1, 0.5, "maybe", [], {}, LONG, math.nan, b"1"],
    "model_caching": [None, 2, "maybe", [], {}, math.inf],
    "low_memory": [None, True, 1, "", "yes", [], b"on"],
    "memory_mb": [None, True, -1, 1.5, math.nan, math.inf, "", "x", "1e99", [], {}, 1 << 40, "9" * 5000],
    "config_json": ["[]", "1", "{", "null", '{"CACHE_DIR": "/x"}', '{"A": 1}', '{"NUM_STREAMS": -1}', '{"NUM_STREAMS": null}',
        LONG, 7, [1]],
}
VALUES["config_json"] += ['{"DEVICE_PROPERTIES": "{CPU:{CACHE_DIR:/x}}"}', '{"DEVICE_PROPERTIES": {"CPU": {"LOG_LEVEL": "x"}}}',
    "[" * 4000]
FIELDS = [(name, value) for name, values in VALUES.items() for value in values]
short = {"ids": lambda value: ascii(value)[:40]}


@pytest.mark.parametrize("body", BODIES, **short)
def test_a_bad_body_of_a_route_is_refused(body: Any) -> None:
    with pytest.raises(SettingsError) as refused:
        parse_precompile(body)
    assert_sentence(str(refused.value))


@pytest.mark.parametrize("name,value", FIELDS, **short)
def test_a_bad_choice_of_a_route_is_refused(name: str, value: Any) -> None:
    with pytest.raises(SettingsError) as refused:
        parse_choices({"choices": {name: value}})
    assert_sentence(str(refused.value))


@pytest.mark.parametrize("name,value", FIELDS, **short)
def test_a_bad_argument_of_the_script_becomes_the_default(name: str, value: Any) -> None:
    arguments = {**vars(Choices()), name: value}
    choices, messages = Choices.from_args(list(arguments.values()))
    assert choices == Choices()
    assert len(messages) == 1
    assert_sentence(messages[0].replace("is used instead.", "is used instead; correct it."))


@pytest.mark.parametrize("args", [1, "x", {}, {"device": "CPU"}, ["CPU"], [None] * 9, [[]] * 30, [LONG] * 3], **short)
def test_bad_lists_of_arguments_are_reported(args: Any) -> None:
    choices, messages = Choices.from_args(args)
    assert choices == Choices()
    assert messages
    assert all("\n" not in message for message in messages)


TEXTS = [(name, value) for name, value in FIELDS if isinstance(value, str) and value.strip() and ";" not in value]


@pytest.mark.parametrize("name,value", TEXTS, **short)
def test_a_bad_field_of_a_picture_becomes_the_default_and_is_reported(name: str, value: str) -> None:
    field = f"{name}={value}"
    text = f"a cat\nSteps: 20, Seed: 4, Size: 64x64, OpenVINO: {json.dumps(field)}"
    _, choices = Parameters.from_text(text)
    assert choices == Choices()
    (message,) = refused_choices(text)
    assert_sentence(message.replace("is used instead.", "is used instead; correct it."))


# ---------------------------------------------------------------- Settings, the environment, torch.compile


class Unspeakable:
    """A value whose own repr fails."""

    def __repr__(self) -> str:
        raise RuntimeError("no repr")


SETTINGS: dict[str, list[Any]] = {
    "device": [None, 1, "", " ", [], b"CPU", [0] * 999, torch.zeros(20, 20)],
    "precision": [None, 1, "", "f8", [], torch.float32, LONG],
    "model_caching": [None, 2, "maybe", [], 0.5],
    "cache_dir": [1, [], {}, [LONG], "", " ", "a\0b", b"x", True],
    "disabled_ops": ["aten.add", LONG, ["a b" * 999], None, 1, torch.ops.aten.add, [None], [["aten.add.Tensor"]]],
    "decompositions": ["aten.silu", None, 1],
    "converter": [None, "onnx", 1, ""],
    "min_block_size": [None, 0, LONG, -1, "1", True, math.nan, -math.inf, []],
    "truncate_long_and_double": [None, "maybe", 2, []],
    "wide_integers": [None, "maybe"],
    "aot_autograd": [None, "maybe"],
    "dynamic_shapes": [None, "maybe"],
    "debug": [None, "maybe", LONG],
    "config": [None, 1, "x", LONG, [], [("A", 1)], {1: 2}, {None: "x"}],
    "fallback": [None, "eager", 1, "", LONG],
    "memory_mb": [None, -1, 1.5, "1", True, math.nan, math.inf, LONG],
    "cache_mb": [None, -1, 1.5, "1", True],
    "low_memory": [None, True, "maybe", 1, ""],
    "blob_cache": [None, True, "maybe", 1],
    "blob_mb": [None, -1, 1.5, "1", True],
}
SETTING_FIELDS = [(name, value) for name, values in SETTINGS.items() for value in values if (name, value) != ("cache_dir", None)]
#: Values whose repr fails: Python writes no whole number of so many digits.
UNWRITABLE: list[dict[str, Any]] = [{"memory_mb": -(10**5000)}, {"precision": Unspeakable()}, {"optimization_level": 10**5000}]
OPTIONS: list[dict[Any, Any]] = [
    {"devise": "CPU"},
    {"": 1},
    {1: 2},
    {None: None},
    {LONG: 1},
    *({"torch_executed_ops": value} for value in (None, 1, "aten.add")),
    *({"enabled_precisions": value} for value in (None, "f32", LONG, {torch.int8}, set(), {torch.float16, torch.bfloat16}, {1})),
    *({"optimization_level": value} for value in (None, -1, 6, "3", True, 1.5, [])),
    {"precision": "f32", "enabled_precisions": {torch.float32}},
    {"decompositions": ["aten.nothing"]},
    {"decompositions": [1]},
    {"decompositions": [LONG]},
    {"optimization_level": LONG},
    {"optimization_level": 0, "config": 1},
    {"optimization_level": 0, "config": "x"},
]


def test_every_setting_has_bad_values() -> None:
    assert set(SETTINGS) == {field.name for field in dataclasses.fields(Settings)}


@pytest.mark.parametrize("name,value", SETTING_FIELDS, **short)
def test_a_bad_setting_is_refused(name: str, value: Any) -> None:
    with pytest.raises(SettingsError) as refused:
        Settings(**{name: value})
    assert_sentence(str(refused.value))
    assert name in str(refused.value)
    with pytest.raises(SettingsError):
        torch_compile_options.parse({name: value})


@pytest.mark.parametrize("values", UNWRITABLE, ids=range(len(UNWRITABLE)))
def test_a_bad_setting_that_cannot_be_written_is_refused(values: dict[str, Any]) -> None:
    with pytest.raises(SettingsError) as refused:
        Settings(**values)
    assert_sentence(str(refused.value))


@pytest.mark.parametrize("options", OPTIONS, ids=range(len(OPTIONS)))  # the text of a set differs from process to process
def test_a_bad_option_of_torch_compile_is_refused(options: dict[Any, Any]) -> None:
    with pytest.raises(SettingsError) as refused:
        torch_compile_options.parse(options)
    assert_sentence(str(refused.value))


@pytest.mark.parametrize("model", [None, LONG, Unspeakable(), [torch.nn.Linear(2, 2)] * 99, torch.zeros(20, 20)], ids=range(5))
def test_a_model_that_cannot_be_called_is_refused_by_explain(model: Any) -> None:
    import ov_backend

    with pytest.raises(SettingsError, match="it must be a module or a function") as refused:
        ov_backend.explain(model, torch.zeros(2))
    assert_sentence(str(refused.value))
    assert len(str(refused.value)) < 270


LONG_OPTIONS: list[dict[str, Any]] = [{"out": [LONG]}, {LONG: 1}, *({name: LONG} for name in ("rows", "out", "lora_dir"))]
LONG_OPTIONS += [{"checkpoint": LONG}, {"workers": LONG}, {"ray": LONG}, {"ray": [LONG]}]


@pytest.mark.parametrize("arguments", LONG_OPTIONS, ids=range(len(LONG_OPTIONS)))
def test_a_long_option_is_cut_in_the_refusal_of_batch(tmp_path: Path, arguments: dict[str, Any]) -> None:
    import ov_backend

    with pytest.raises(SettingsError) as refused:
        ov_backend.batch(**{"rows": [{"prompt": "a boat"}], "out": tmp_path / "out", **arguments})
    assert_sentence(str(refused.value))


@pytest.mark.parametrize("make", [lambda: Settings(device="TOASTER"), lambda: Settings(device="AUTO:,")])
def test_a_device_that_is_not_there_is_refused_by_accelerate(make: Callable[[], Settings]) -> None:
    import ov_backend

    with pytest.raises(OVBackendError) as refused:
        ov_backend.accelerate({"net": torch.nn.Linear(2, 2)}, make())
    assert_sentence(str(refused.value))


@pytest.mark.parametrize("name,settings", [(1, None), (b"x" * 5000, None), ("net", {"device": "CPU"}), ("net", LONG)])
def test_accelerate_refuses_wrong_types(name: Any, settings: Any) -> None:
    import ov_backend

    with pytest.raises(SettingsError) as refused:
        ov_backend.accelerate({name: torch.nn.Linear(2, 2)}, settings)
    assert_sentence(str(refused.value))


def test_a_network_whose_lazy_layers_have_no_weights_is_refused_by_accelerate() -> None:
    import ov_backend

    with pytest.raises(SettingsError, match="net has lazy layers without weights; call it once before"):
        ov_backend.accelerate({"net": torch.nn.Sequential(torch.nn.LazyLinear(2))})


def test_the_table_has_more_than_three_hundred_bad_inputs() -> None:
    entries = [LINES, FILES, YAML_VALUES, BODIES, FIELDS, FIELDS, TEXTS, SETTING_FIELDS, OPTIONS, ENVIRONMENT]
    assert sum(map(len, entries)) > 600
    assert all(len(entry) > 10 for entry in entries)
