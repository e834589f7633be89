"""Documents of unknown origin: what is meant is read, and what grows, nests or never ends is refused in little memory."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ov_backend.checkpoint import companion_files
from ov_backend.checkpoint.companion_files import parse_json, parse_yaml
from ov_backend.checkpoint.header import MAX_HEADER_BYTES

ROOT = Path(__file__).parents[2]
pytest.importorskip("yaml")


def bomb(levels: int, width: int) -> str:
    """YAML whose aliases stand for ``width ** levels`` values."""
    lines = ["a0: &a0 [x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * width)}]" for i in range(1, levels)]
    return "\n".join(lines)


def test_anchors_that_are_meant_are_read() -> None:
    assert parse_yaml("a: &x {b: 1}\nc: *x\nd: {<<: *x, e: [1, 2.5, text]}") == {
        "a": {"b": 1},
        "c": {"b": 1},
        "d": {"b": 1, "e": [1, 2.5, "text"]},
    }


REFUSED: dict[str, str] = {
    "billion laughs": bomb(9, 9),
    "a bomb of two": bomb(25, 2),
    "a merged bomb": "a0: &a0 {x: 1}\n" + "\n".join(f"a{i}: &a{i} {{k: [{', '.join([f'*a{i - 1}'] * 9)}]}}" for i in range(1, 9)),
    "a list that holds itself": "a: &a [*a]",
    "a mapping that merges itself": "a: &a\n  <<: *a",
    "a long text many times": "a: &a " + "x" * 9000 + "\nb: [" + ", ".join(["*a"] * 200) + "]",
    "an alias of nothing": "a: *b",
    "deep lists": "[" * 40 + "]" * 40,
    "very deep lists": "[" * 30000,
    "deep mappings": "\n".join("  " * i + "a:" for i in range(60)),
    "deep flow mappings": "{a: " * 5000,
    "a python tag": "!!python/object/apply:os.mkdir [executed]",
    "a python name": "a: !!python/name:os.system ''",
    "two documents": "a: 1\n---\nb: 2",
    "a number of many digits": "a: " + "9" * 5000,
    "a broken date": "a: 2001-99-99",
    "broken binary": "a: !!binary é",
    "an unhashable key": "? [1]\n: 2",
    "a tab": "a:\n\t- b",
    "a null byte": "a: \0",
    "a broken escape": 'a: "\\xZZ"',
    "half a document": "{a: [",
}


@pytest.mark.parametrize("name", REFUSED)
def test_yaml_that_is_not_meant_is_refused(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError):  # noqa: PT011  # the message is the caller's
        parse_yaml(REFUSED[name])
    assert not list(tmp_path.iterdir()), "nothing was executed"


@pytest.mark.parametrize("text", ["", "{", "[" * 33 + "]" * 33, "[" * 100_000, "{" * 5, '{"a": }', "9" * 5000, "\0", "[1,]"])
def test_json_that_is_not_meant_is_refused(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        parse_json(text)


def entry(shape: str = "[]", offsets: str = "[0,4]") -> str:
    return '{"dtype":"F32","shape":' + shape + ',"data_offsets":' + offsets + "}"


#: Headers that are as long as any may be.
LARGE = MAX_HEADER_BYTES - (64 << 10)
HOSTILE: dict[str, Callable[[], str]] = {
    "longer": lambda: "[" * (3 << 20),
    "lists": lambda: '{"a":[' + "[]," * (LARGE // 3) + "[]]}",
    "deep": lambda: "[" * LARGE,
    "deep in a tensor": lambda: '{"a":{"shape":' + "[" * LARGE,
    "tensors": lambda: "{" + ",".join(f'"{i}":{entry()}' for i in range(LARGE // 60)) + "}",
    "a long name": lambda: '{"' + "x" * LARGE + '":' + entry() + "}",
    "names": lambda: "{" + ",".join(f'"{i:0500}":{entry()}' for i in range(LARGE // 560)) + "}",
    "metadata": lambda: '{"__metadata__":{' + ",".join(f'"{i}":"x"' for i in range(LARGE // 12)) + "}," + '"a":1}',
    "metadata of quotes": lambda: '{"__metadata__":{"a":"' + '\\"' * (LARGE // 2) + '"},"a":1}',
    "metadata without an end": lambda: '{"__metadata__":{"a":"' + "\\" * LARGE,
    "metadata that is no text": lambda: '{"__metadata__":{"a":[' + "[]," * (LARGE // 3) + "]}}",
    "a number": lambda: '{"a":' + "9" * LARGE + "}",
    "spaces": lambda: "{" + " " * LARGE + "x",
    "wide": lambda: '{"a":"' + "\U0001f600" * (LARGE // 4) + '"}',
    "a shape that is large": lambda: '{"a":' + entry(f"[{1 << 40}]") + "}",
    "a shape with many sides": lambda: '{"a":' + entry("[" + "1," * 2000 + "1]") + "}",
    "twice the same": lambda: "{" + ",".join([f'"a":{entry("[3]")}'] * (LARGE // 60)) + "}",
}
CHILD = """
import sys, resource
from pathlib import Path
from ov_backend.checkpoint.loader import load_pipeline
from ov_backend.core.errors import CheckpointError
import yaml
def peak():
    return int(next(l for l in open("/proc/self/status") if l.startswith("VmHWM")).split()[1]) << 10
failed = []
for name in sys.argv[1:]:
    Path("/proc/self/clear_refs").write_text("5")
    before = peak()
    try:
        load_pipeline(Path(name))
        failed.append(f"{name} was read")
    except CheckpointError as error:
        if len(str(error)) > 700 or chr(10) in str(error):
            failed.append(f"{name}: {error}")
    more = peak() - before - Path(name).stat().st_size
    if more > 64 << 20:
        failed.append(f"{name} took {more >> 20} MiB more than its size")
print(failed)
"""


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="only Linux says how much memory was used at most")
def test_refusing_a_hostile_file_takes_little_memory(tmp_path: Path) -> None:
    names = []
    for name, make in HOSTILE.items():
        text = make().encode("utf-8")
        path = tmp_path / f"{name}.safetensors"
        path.write_bytes(len(text).to_bytes(8, "little") + text + b"\0" * 4)
        names.append(str(path))
    sound = json.dumps({f"{prefix}a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]} for prefix in PREFIXES}).encode()
    for name, text in REFUSED.items():
        path = tmp_path / f"yaml {name}.safetensors"
        path.write_bytes(len(sound).to_bytes(8, "little") + sound + b"\0" * 4)
        path.with_suffix(".yaml").write_text(text, encoding="utf-8")
        names.append(str(path))
    path.with_suffix(".yaml").write_bytes(b"a: [" + b"x, " * (companion_files.MAX_YAML_BYTES) + b"]")
    child = subprocess.run([sys.executable, "-c", CHILD, *names], cwd=ROOT, capture_output=True, text=True, check=False)
    assert child.stdout.strip() == "[]", child.stdout + child.stderr[-2000:]


PREFIXES = ("model.diffusion_model.", "first_stage_model.", "cond_stage_model.transformer.")
