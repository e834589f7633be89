"""Bad command lines and environments: one sentence, exit code 2, no traceback, and no file left behind."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("diffusers")

from ov_backend.cli import main as cli
from tests.helpers.refusals import LONG, assert_sentence

NUMBERS = ["", " ", "many", "1.5", "0x10", "nan", "inf", "-1", "1e3"]
DEMO: list[list[str]] = [
    *(["--steps", each] for each in [*NUMBERS, "0", "1001", "9" * 30]),
    *(["--seed", each] for each in [*(each for each in NUMBERS if each != "-1"), "-2", str(1 << 63), "9" * 5000]),
    *(["--guidance", each] for each in ["", "nan", "inf", "-inf", "1e999", "x", "7,5", "1001", "-1e9"]),
    *(["--size", each] for each in ["", "8", "0", "-8", "64x", "x64", "64x64x64", "99999999", "65", "64x8192", "1e3", "64 64",
        LONG]),
    *(["--device", each] for each in ["", " ", "TOASTER", "GPU.7", "CPU.9", "AUTO:", "AUTO:,", "HETERO", "HETERO:", "MULTI",
        "BATCH"]),
    *(["--device", each] for each in ["HETERO:CPU,TOASTER", "AUTO:TOASTER", "AUTO:-CPU", "MULTI:,", "CPU,GPU", "../x", LONG,
        "ÄÖ"]),
    *(["--precision", each] for each in ["", "f8", "F32", "float32", "int8", LONG]),
    *(["--sampler", each] for each in ["", "guess", "LMS", "__class__", LONG]),
    *(["--out", each] for each in ["", "/", "x.jpg", "x", "/nowhere/x.png", "/proc/x.png", "a\0b.png", f"{LONG}.png", ".", "..",
        "/x.png/y.png"]),
    *(["--checkpoint", each] for each in ["", "none", "/", ".", "/dev/null", "/proc/self/mem", "a\0b", LONG, "none.ckpt", "*"]),
    *(["--cache-dir", each] for each in ["", " ", "a\0b", "file.txt", "file.txt/x", "loop", "link"]),
    *([each] for each in ["--colour", "--steps", "--size", "-x", "--random", "--out=", "--che"]),
    *(["a fox", *each] for each in [["extra"], ["--prompt", "a fox"], [LONG], ["--lora-dir", "none"]]),
    *([f"a fox {each}"] for each in ["<lora:>", "<lora:none>", "<lora:none:x>", "<lora:none", "<hypernet:none:1>"]),
]
COMMANDS: list[list[str]] = [
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
    *(["report", each] for each in ["", ":", ":x", "a:", "..a:b", ".:x", "a b:c", "no_such_module:x", "json:nothing",
        "json:__doc__"]),
    *(["report", each] for each in ["nofile", "file.txt", "os:getcwd", "time:time", "planted:", "planted:raises",
        "planted:exits"]),
    *(["report", f"planted:{each}"] for each in ("number", "pair_of_numbers", "wrong_shape", "wrong_name", "one_value", "a.b",
        "missing")),
    ["report", "broken_module:x"],
    ["report", "syntax_error:x"],
    ["report", LONG],
    ["report", "a\0b"],
    *(["report", "planted:works", "--svg", each] for each in [".", "/", "nowhere/x.svg", "/proc/x.svg", f"{LONG}/x.svg"]),
    *(["report", "planted:works", "--size", each] for each in ["-8", "0", "7", "x", "1e3", "8192", "64x", "64x65", ""]),
    *(["precompile", *each] for each in [[], ["none.safetensors"], ["file.txt"], ["."], ["file.txt", "--sizes", ""], [""]]),
    *(["precompile", "file.txt", "--sizes", each] for each in ["8", "64x", "64,,64", "a", "64x64;64", "٦٤"]),
    *(["precompile", "file.txt", "--batch", each] for each in ["", "0", "17", "-1", "1,", "many", "1.0", "9" * 5000]),
    *(["precompile", "file.txt", "--guidance", each] for each in ["", "nan", "inf", "x"]),
    *(["precompile", "file.txt", "--blob-cache", each] for each in ["", "perhaps"]),
    *(["precompile", "file.txt", "--cache-dir", each] for each in ["", "/proc/x", "file.txt", "a\0b", "/dev/null/x"]),
    *(["precompile", "file.txt", "--device", each] for each in ["", "TOASTER", "HETERO"]),
    *(["serve", "--port", each] for each in ["", "x", "-1", "70000", "9" * 30]),
    *(["batch", "file.txt", "--out", each] for each in ["", " ", "loop", "link", "file.txt"]),
    *(["serve", "--auth", each] for each in ["", "anna", ":", "anna:", ":secret"]),
    *(["serve", "--host", each] for each in ["", "no such host", "a..b", "x" * 70, "999.1.1.1", "a\0b", "192.0.2.1", "::2"]),
    *(["serve", "--allow-host", each] for each in ["", "a b", "*", "*.", "http://x", "é"]),
    *(["serve", "--out", each] for each in ["/proc/x", "file.txt", "a\0b", "", " ", "loop", "link"]),
    *(["serve", "--checkpoint", each, "--port", "0"] for each in ["none", "file.txt"]),
    *([name, *rest] for name in ("generate", "demo") for rest in (["a fox", "--checkpoint", ""], ["a fox", "--lora-dir", " "])),
    *(["serve", "", "--port", "0"], ["batch", "", "--out", "out"], ["report", "planted:works", "--svg", ""]),
    ["serve", "--json"],
]
LINES = [["demo", *each] for each in DEMO] + COMMANDS
PLANTED = """
import functools, os, torch
model = torch.nn.Linear(3, 3)
works = lambda: (model, (torch.zeros(1, 3),))
of_a_partial = lambda: (functools.partial(torch.add, torch.ones(3)), (torch.ones(3),))
def moves(): os.chdir("/"); return works()
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
    for name, text in {"file.txt": "hello", "planted.py": PLANTED, "broken_module.py": "1 / 0", "syntax_error.py": "("}.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "link").symlink_to("nothing")
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


@pytest.mark.parametrize("name", ["works", "of_a_partial", "moves"])
def test_a_report_finds_the_modules_of_the_current_folder(folder: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    before = [*sys.path]
    assert run(["report", f"planted:{name}"]) == 0
    assert capsys.readouterr().out.startswith("1 graph, ")
    assert sys.path == before


def test_a_report_says_why_the_model_cannot_be_called_and_nothing_else(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["report", "planted:wrong_shape"]) == 2
    cause = "mat1 and mat2 shapes cannot be multiplied (1x4 and 3x3)"
    assert capfd.readouterr().err == (
        f"'planted:wrong_shape' cannot be called with its inputs (RuntimeError: {cause}); make them fit the model.\n"
    )


ENVIRONMENT = [("OPENVINO_TORCH_BACKEND_DEVICE", value) for value in ("TOASTER", " ", "GPU.99", "HETERO:", "AUTO:,", LONG)]
ENVIRONMENT += [("OPENVINO_TORCH_MODEL_CACHING", value) for value in ("maybe", "2", "tru", " yes no")]
ENVIRONMENT += [("OPENVINO_TORCH_CACHE_DIR", value) for value in (" ", "/proc/nothing", "/dev/null/x", LONG)]


@pytest.mark.parametrize("name,value", ENVIRONMENT, ids=lambda value: ascii(value)[:40])
def test_a_bad_environment_is_refused(
    folder: Path, name: str, value: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(name, value)
    assert run(["precompile", "file.txt"]) == 2
    assert_sentence(capsys.readouterr().err.strip())


def test_the_last_handler_turns_anything_into_a_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for error in (RuntimeError("two\nlines"), MemoryError(), OSError(28, "No space left on device", "x"), OSError("odd"),
        KeyError("k")):

        def fail(error: Exception = error) -> None:
            raise error

        monkeypatch.setattr("ov_backend.core.devices.list_devices", fail)
        assert cli.main(["devices"]) == 2
        assert_sentence(capsys.readouterr().err.strip())
