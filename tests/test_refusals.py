"""Bad input at every entry: one sentence that says what is expected, exit code 2, no traceback, and nothing done."""

from __future__ import annotations

import dataclasses
import json
import math
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from ov_backend import OVBackendError, Settings
from ov_backend.dynamo import options as torch_compile_options
from ov_backend.errors import CheckpointError, SettingsError
from ov_backend.ui.choices import Choices
from ov_backend.ui.controller import parse_choices, parse_precompile
from ov_backend.ui.infotext import Parameters, refused_choices

pytest.importorskip("diffusers")

from ov_backend.checkpoint import load_pipeline
from ov_backend.cli import main as cli
from tests.checkpoint.test_values import WRONG as YAML_VALUES
from tests.checkpoint.test_values import written

LONG = "x" * 5000
#: A refusal has one of these: what is expected, or what to do.
ADVICE = re.compile(
    r"must|give|expected|choose|use |leave|remove|known|write|--help|correct|convert|install|exclude|download|check|make|try|can do"
)


def assert_sentence(message: str) -> None:
    """One line of a readable length that says what to do."""
    assert "\n" not in message.strip()
    assert 10 < len(message) < 1000, message
    assert ADVICE.search(message), message
    assert message.rstrip().endswith((".", "}", ")")), message
    assert "Traceback" not in message


# ---------------------------------------------------------------- the command line

NUMBERS = ["", " ", "many", "1.5", "0x10", "nan", "inf", "-1", "1e3"]
DEMO: list[list[str]] = [
    *(["--steps", each] for each in [*NUMBERS, "0", "1001", "9" * 30]),
    *(["--seed", each] for each in [*NUMBERS, str(1 << 63), "9" * 5000]),
    *(["--guidance", each] for each in ["", "nan", "inf", "-inf", "1e999", "x", "7,5", "1001", "-1e9"]),
    *(["--size", each] for each in ["", "8", "0", "-8", "64x", "x64", "64x64x64", "99999999", "65", "64x8192", "1e3", "64 64", LONG]),
    *(["--device", each] for each in ["", " ", "TOASTER", "GPU.7", "CPU.9", "AUTO:", "AUTO:,", "HETERO", "HETERO:", "MULTI", "BATCH"]),
    *(["--device", each] for each in ["HETERO:CPU,TOASTER", "AUTO:TOASTER", "AUTO:-CPU", "MULTI:,", "CPU,GPU", "../x", LONG, "ÄÖ"]),
    *(["--precision", each] for each in ["", "f8", "F32", "float32", "int8", LONG]),
    *(["--sampler", each] for each in ["", "guess", "Euler", "__class__", LONG]),
    *(["--out", each] for each in ["", "/", "x.jpg", "x", "/nowhere/x.png", "/proc/x.png", "a\0b.png", f"{LONG}.png", ".", "..", "/x.png/y.png"]),
    *(["--checkpoint", each] for each in ["", "none", "/", ".", "/dev/null", "/proc/self/mem", "a\0b", LONG, "none.ckpt", "*"]),
    *(["--cache-dir", each] for each in ["", " ", "a\0b"]),
    ["--random", "--checkpoint", "x.safetensors"],
    *([each] for each in ["--colour", "extra", "--steps", "--size", "-x", "--", "--random=1", "--out=", "--che", LONG]),
]
COMMANDS: list[list[str]] = [
    [],
    [""],
    ["unknown"],
    [LONG],
    ["--json"],
    ["devices", "extra"],
    ["devices", "--what"],
    *(["cache", *each] for each in [[], ["burn"], ["info", "more"], ["info", "--cache-dir"], ["info", "--cache-dir", ""]]),
    *(["cache", each, "--cache-dir", "nowhere"] for each in ("info", "list", "verify", "clear")),
    ["cache", "info", "--cache-dir", "file.txt"],
    ["cache", "list", "--cache-dir", "a\0b"],
    ["cache", "clear", "--cache-dir", LONG],
    *(["report", each] for each in ["", ":", ":x", "a:", "..a:b", ".:x", "a b:c", "no_such_module:x", "json:nothing", "json:__doc__"]),
    *(["report", each] for each in ["nofile", "file.txt", "os:getcwd", "time:time", "planted:", "planted:raises", "planted:exits"]),
    *(["report", f"planted:{each}"] for each in ("number", "pair_of_numbers", "wrong_shape", "wrong_name", "one_value", "a.b", "missing")),
    ["report", "broken_module:x"],
    ["report", "syntax_error:x"],
    ["report", LONG],
    ["report", "a\0b"],
    *(["report", "planted:works", "--svg", each] for each in [".", "/", "nowhere/x.svg", "/proc/x.svg", f"{LONG}/x.svg"]),
    *(["report", "planted:works", "--size", each] for each in ["-8", "0", "7", "x", "1e3", "8192", ""]),
    *(["precompile", *each] for each in [[], ["none.safetensors"], ["file.txt"], ["."], ["file.txt", "--sizes", ""], [""]]),
    *(["precompile", "file.txt", "--sizes", each] for each in ["8", "64x", "64,,64", "a", "64x64;64", "٦٤"]),
    *(["precompile", "file.txt", "--batch", each] for each in ["", "0", "17", "-1", "1,", "many", "1.0", "9" * 5000]),
    *(["precompile", "file.txt", "--guidance", each] for each in ["", "nan", "inf", "x"]),
    *(["precompile", "file.txt", "--blob-cache", each] for each in ["", "perhaps"]),
    *(["precompile", "file.txt", "--cache-dir", each] for each in ["", "/proc/x", "file.txt", "a\0b", "/dev/null/x"]),
    *(["precompile", "file.txt", "--device", each] for each in ["", "TOASTER", "HETERO"]),
    *(["serve", "--port", each] for each in ["", "x", "-1", "70000", "9" * 30]),
    *(["serve", "--auth", each] for each in ["", "anna", ":", "anna:", ":secret"]),
    *(["serve", "--host", each] for each in ["", "no such host", "a..b", "x" * 70, "999.1.1.1", "a\0b"][1:]),
    *(["serve", "--allow-host", each] for each in ["", "a b", "*", "*.", "http://x", "é"]),
    *(["serve", "--out", each] for each in ["/proc/x", "file.txt", "a\0b"]),
    *(["serve", "--checkpoint", each, "--port", "0"] for each in ["none", "file.txt"]),
    ["serve", "--random", "--checkpoint", "x", "--port", "0"],
    ["serve", "--json"],
]
LINES = [["demo", *each] for each in DEMO] + COMMANDS
PLANTED = """
import torch
model = torch.nn.Linear(3, 3)
works = lambda: (model, (torch.zeros(1, 3),))
number = lambda: 3
pair_of_numbers = lambda: (3, (4,))
wrong_shape = lambda: (model, (torch.zeros(1, 4),))
wrong_name = lambda: (model, {"y": torch.zeros(1, 3)})
one_value = lambda: (model, torch.zeros(1, 3))
def raises(): raise RuntimeError("two\\nlines")
def exits(): 1 / 0
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current folder, with a file that is no checkpoint and modules that fail."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for name, text in {"file.txt": "hello", "planted.py": PLANTED, "broken_module.py": "1 / 0", "syntax_error.py": "("}.items():
        (tmp_path / name).write_text(text)
    yield tmp_path
    for name in ("planted", "broken_module", "syntax_error"):
        sys.modules.pop(name, None)


def run(arguments: list[str]) -> int:
    try:
        return cli.main(arguments)
    except SystemExit as system_exit:  # from argparse
        return int(system_exit.code or 0)


@pytest.mark.parametrize("arguments", LINES, ids=lambda arguments: ascii(" ".join(arguments))[:60])
def test_a_bad_command_line_is_refused(folder: Path, arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    before = sorted(folder.iterdir())
    assert run(arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert len(printed.err.strip().splitlines()) == 1
    assert "this is a defect" not in printed.err
    assert_sentence(printed.err.strip())
    assert [path for path in sorted(folder.iterdir()) if path.name != "__pycache__"] == before, "a file is left behind"


# ---------------------------------------------------------------- checkpoint files and YAML


def header(text: str, data: int = 4) -> bytes:
    encoded = text.encode("utf-8", "surrogatepass")
    return len(encoded).to_bytes(8, "little") + encoded + b"\0" * data


def tensor(**changes: Any) -> str:
    return json.dumps({"model.diffusion_model.a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4], **changes}})


FILES: dict[str, bytes] = {
    **{f"bytes {i}": data for i, data in enumerate([b"", b"\0", b"1234567", b"\0" * 8, b"\xff" * 8, b"\xff" * 100, b"PK\3\4", b"GGUF" * 9])},
    **{f"text {i}": data for i, data in enumerate([b"<!DOCTYPE html>", b"version https://git-lfs.github.com/spec/v1\n", b"\x80\x04..", b"{}"])},
    **{f"length {length}": length.to_bytes(8, "little") + b"{}" for length in (1, 3, 1 << 20, 100 << 20, (100 << 20) + 1, 1 << 63)},
    **{f"no header {i}": header(text) for i, text in enumerate(["", "[]", "null", "1", "{", "{]", '{"a"}', '{"a":}', '{"a":1}', '{"a":{}'])},
    **{f"no entry {i}": header('{"a":' + text + "}") for i, text in enumerate(["{}", "[]", "null", '{"dtype":"F32"}', '{"shape":[1]}'])},
    **{f"shape {i}": header(tensor(shape=shape)) for i, shape in enumerate([[-1], [2], [1.0], ["1"], [True], None, 1, [[1]], [1] * 99, [1 << 60]])},
    **{f"offsets {i}": header(tensor(data_offsets=o)) for i, o in enumerate([[], [0], [4, 0], [0, 4, 8], [0, 1 << 60], [-4, 0], None, ["0", "4"]])},
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

BODIES: list[Any] = [None, 1, "x", [], {}, {"sizes": None}, {"sizes": {}}, {"sizes": "64x64"}, {"sizes": [[]]}, {"sizes": [[64, 64, 64]]}]
BODIES += [{"sizes": [[64, value]]} for value in (None, "64", 64.0, True, -64, 0, 7, 1 << 70, [], {}, math.nan)]
BODIES += [{"sizes": [[64, 64]], "batch": value} for value in (None, "1", 1.0, True, 0, -1, 17, 1 << 70, [], {})]
BODIES += [{"sizes": [[64, 64]], "choices": value} for value in (1, "x", [], True, {"x": 1}, {"__class__": 1}, {LONG: 1})]
BODIES += [{"sizes": [[4096, 4096]], "batch": 2}, {"sizes": [[64, 64]] * 17}, {"sizes": [[64, 64]], "path": "/etc"}]
VALUES: dict[str, list[Any]] = {
    "device": [None, 1, True, [], {}, "", " ", "no device!", "CPU;rm", "../x", LONG, "CPU:", "AUTO:GPU,", "é", b"CPU", "CPU\n"[:0]],
    "precision": [None, 1, [], "", "f8", "fp32", "F 32", LONG, b"f32"],
    "unet": [None, 2, -1, 0.5, "", "maybe", [], {}, LONG, math.nan][:3] + ["maybe", [], {}, LONG, math.nan, b"1"],
    "model_caching": [None, 2, "maybe", [], {}, math.inf],
    "memory_mb": [None, True, -1, 1.5, math.nan, math.inf, "", "x", "1e99", [], {}, 1 << 40, "9" * 5000],
    "config_json": ["[]", "1", "{", "null", '{"CACHE_DIR": "/x"}', '{"A": 1}', '{"NUM_STREAMS": -1}', '{"NUM_STREAMS": null}', LONG, 7, [1]],
}
VALUES["config_json"] += ['{"DEVICE_PROPERTIES": "{CPU:{CACHE_DIR:/x}}"}', '{"DEVICE_PROPERTIES": {"CPU": {"LOG_LEVEL": "x"}}}', "[" * 4000]
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

SETTINGS: dict[str, list[Any]] = {
    "device": [None, 1, "", " ", [], b"CPU"],
    "precision": [None, 1, "", "f8", [], torch.float32],
    "model_caching": [None, 2, "maybe", [], 0.5],
    "cache_dir": [1, [], {}, "", " ", "a\0b", b"x", True],
    "disabled_ops": ["aten.add", None, 1, torch.ops.aten.add],
    "decompositions": ["aten.silu", None, 1],
    "converter": [None, "onnx", 1, ""],
    "min_block_size": [None, 0, -1, "1", True, math.nan, -math.inf, []],
    "truncate_long_and_double": [None, "maybe", 2, []],
    "wide_integers": [None, "maybe"],
    "aot_autograd": [None, "maybe"],
    "dynamic_shapes": [None, "maybe"],
    "debug": [None, "maybe"],
    "config": [None, 1, "x", [], [("A", 1)]],
    "fallback": [None, "eager", 1, ""],
    "memory_mb": [None, -1, 1.5, "1", True, math.nan, math.inf],
    "cache_mb": [None, -1, 1.5, "1", True],
    "blob_cache": [None, True, "maybe", 1],
    "blob_mb": [None, -1, 1.5, "1", True],
}
SETTING_FIELDS = [(name, value) for name, values in SETTINGS.items() for value in values if (name, value) != ("cache_dir", None)]
OPTIONS: list[dict[Any, Any]] = [
    {"devise": "CPU"},
    {"": 1},
    {1: 2},
    {None: None},
    {LONG: 1},
    *({"torch_executed_ops": value} for value in (None, 1, "aten.add")),
    *({"enabled_precisions": value} for value in (None, "f32", {torch.int8}, set(), {torch.float16, torch.bfloat16}, {1})),
    *({"optimization_level": value} for value in (None, -1, 6, "3", True, 1.5, [])),
    {"precision": "f32", "enabled_precisions": {torch.float32}},
    {"decompositions": ["aten.nothing"]},
    {"decompositions": [1]},
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


@pytest.mark.parametrize("options", OPTIONS, **short)
def test_a_bad_option_of_torch_compile_is_refused(options: dict[Any, Any]) -> None:
    with pytest.raises(SettingsError) as refused:
        torch_compile_options.parse(options)
    assert "\n" not in str(refused.value)


ENVIRONMENT = [("OPENVINO_TORCH_BACKEND_DEVICE", value) for value in ("TOASTER", " ", "GPU.99", "HETERO:", "AUTO:,", LONG)]
ENVIRONMENT += [("OPENVINO_TORCH_MODEL_CACHING", value) for value in ("maybe", "2", "tru", " yes no")]
ENVIRONMENT += [("OPENVINO_TORCH_CACHE_DIR", value) for value in (" ", "/proc/nothing", "/dev/null/x", LONG)]


@pytest.mark.parametrize("name,value", ENVIRONMENT, **short)
def test_a_bad_environment_is_refused(
    folder: Path, name: str, value: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(name, value)
    assert run(["precompile", "file.txt"]) == 2
    assert_sentence(capsys.readouterr().err.strip())


@pytest.mark.parametrize("make", [lambda: Settings(device="TOASTER"), lambda: Settings(device="AUTO:,")])
def test_a_device_that_is_not_there_is_refused_by_accelerate(make: Callable[[], Settings]) -> None:
    import ov_backend

    with pytest.raises(OVBackendError) as refused:
        ov_backend.accelerate({"net": torch.nn.Linear(2, 2)}, make())
    assert_sentence(str(refused.value))


def test_the_table_has_more_than_three_hundred_bad_inputs() -> None:
    entries = [LINES, FILES, YAML_VALUES, BODIES, FIELDS, FIELDS, TEXTS, SETTING_FIELDS, OPTIONS, ENVIRONMENT]
    assert sum(map(len, entries)) > 600
    assert all(len(entry) > 10 for entry in entries)
    assert written


def test_the_last_handler_turns_anything_into_a_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for error in (RuntimeError("two\nlines"), MemoryError(), OSError(28, "No space left on device", "x"), OSError("odd"), KeyError("k")):

        def fail(error: Exception = error) -> None:
            raise error

        monkeypatch.setattr("ov_backend.devices.list_devices", fail)
        assert cli.main(["devices"]) == 2
        assert_sentence(capsys.readouterr().err.strip())
