"""The command line: its output, and one sentence with exit code 2 for bad input."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import torch

import ov_backend
from ov_backend.cli import main as cli
from ov_backend.core.amounts import size_text
from ov_backend.core.settings import Settings
from ov_backend.store.entry_file import GRAPHS
from ov_backend.store.store import GraphStore, open_all, recipe_store, run_store
from tests.cli.conftest import Refusal

pytest.importorskip("diffusers")


def test_devices_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["devices", "--json"]) == 0
    devices = json.loads(capsys.readouterr().out)
    cpu = next(device for device in devices if device["name"] == "CPU")
    assert "f32" in cpu["precisions"]
    assert cpu["default_precision"] in cpu["precisions"]
    assert cli.main(["devices"]) == 0
    assert cpu["full_name"] in capsys.readouterr().out


def test_without_a_command_the_help_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert all(name in printed.err for name in ("demo", "devices", "cache", "precompile", "serve", "report"))


def test_the_versions_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        cli.main(["--version"])
    assert exit_.value.code == 0
    printed = capsys.readouterr().out
    assert f"ov-backend {ov_backend.__version__}" in printed
    assert f"PyTorch {torch.__version__.partition('+')[0]}" in printed


def test_the_list_of_an_empty_store_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["cache", "list", "--cache-dir", str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"No graphs are stored in {tmp_path}.\n"


@pytest.mark.parametrize(
    "arguments,words",
    [
        (["cache"], "cache: say which: info, list, verify or clear. See"),
        (["cache", "list", "extra"], "cache: 'extra' is not an option of this command; remove it. See"),
        (["precompile"], "precompile: CHECKPOINT must be given. See"),
        (["--json"], "ov_backend: '--json' is not an option of this command; remove it. See"),
        (["genrate", "a fox"], "there is no 'genrate'; did you mean generate? See"),
        (["gen"], "there is no 'gen'; did you mean generate? See"),
        (["generate", "a", "fox"], "'fox' is not an option of this command; put a prompt of several words into quotes. See"),
        (["paint"], "there is no 'paint'; give one of generate, demo, serve, batch, devices, cache, precompile, report. See"),
        (["cache", "clean"], "there is no 'clean'; did you mean clear? See"),
        (["cache", "burn"], "there is no 'burn'; give one of info, list, verify, clear. See"),
        (["demo", "--promt=a"], "'--promt=a' is not an option of this command; did you mean --prompt? See"),
        (["generate", "fox", "--chekpoint", "x"], "'--chekpoint' is not an option of this command; did you mean --checkpoint?"),
        (["demo", "a fox", "--prompt", "a cat"], "Both 'a fox' and --prompt are given; give one of them."),
        (["serve", "a.safetensors", "--checkpoint", "b.safetensors", "--port", "0"], "Both 'a.safetensors' and --checkpoint are"),
    ],
)
def test_what_is_missing_or_unknown_is_named(arguments: list[str], words: str, assert_refused: Refusal) -> None:
    assert_refused(arguments, words)


def test_the_list_says_which_network_of_which_size_an_entry_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    module = torch.nn.Conv2d(4, 4, 3)
    with torch.no_grad(), ov_backend.accelerate({"unet": module}, Settings(cache_dir=str(tmp_path))):
        module(torch.zeros(2, 4, 8, 9))
    GraphStore(tmp_path).put("a1", {"x": b"1" * 1000})
    os.utime(tmp_path / "a1.ovgraph", (1763800000, 1763800000))
    assert cli.main(["cache", "list", "--json", "--cache-dir", str(tmp_path)]) == 0
    other, unet = json.loads(capsys.readouterr().out)["entries"]
    assert (unet["network"], unet["size"], unet["batch"]) == ("UNet", "72x64", 2)
    assert (other["key"], other["network"]) == ("a1", "")
    assert cli.main(["cache", "list", "--cache-dir", str(tmp_path)]) == 0
    heading, *lines = capsys.readouterr().out.splitlines()
    assert heading.split()[:3] == ["NETWORK", "SIZE", "BATCH"]
    assert lines[0].startswith("other")
    assert "Nov 2025" in lines[0]
    assert lines[1].split()[:3] == ["UNet", "72x64", "2"]
    assert " KiB  " in lines[1]


def test_verify_says_what_it_has_checked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = GraphStore(tmp_path)
    store.put("a1", {"x": b"1" * 1000})
    assert cli.main(["cache", "verify", "--cache-dir", str(tmp_path)]) == 0
    found = f"1 graph, {size_text(store.bytes)}, in {tmp_path}: 1 whole, 0 damaged, 0 of another version."
    assert found in capsys.readouterr().out


def test_sizes_are_written_as_in_the_panel() -> None:
    """As in tests/javascript/text.test.js."""
    texts = ["0 B", "1023 B", "2.0 KiB", "5.0 MiB", "300 GiB"]
    assert [size_text(size) for size in (0, 1023, 2048, 5 * 1024**2, 300 * 1024**3)] == texts


@pytest.mark.parametrize("content", [b"", b"garbage", None], ids=["empty", "garbage", "cut"])
def test_a_damaged_graph_is_named_beside_the_others(
    content: bytes | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = GraphStore(tmp_path)
    store.put("a1", {"x": b"1" * 1000})
    store.put("b2", {"x": b"2" * 1000})
    path = tmp_path / "a1.ovgraph"
    path.write_bytes(path.read_bytes()[:100] if content is None else content)
    assert cli.main(["cache", "list", "--cache-dir", str(tmp_path)]) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    heading, whole, damaged = printed.out.splitlines()
    assert (heading.split()[0], whole.split()[-1]) == ("NETWORK", "b2")
    assert damaged.startswith("a1 is damaged: ")
    assert f"remove {path}" in damaged
    assert cli.main(["cache", "list", "--json", "--cache-dir", str(tmp_path)]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert list(listed["damaged"]) == ["a1"]
    assert {entry["key"] for entry in listed["entries"]} == {"a1", "b2"}
    assert cli.main(["cache", "verify", "--cache-dir", str(tmp_path)]) == 1
    assert damaged in capsys.readouterr().out.splitlines()


def test_the_json_says_what_the_words_say(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = GraphStore(tmp_path)
    store.put("a1", {"x": b"1"})
    os.utime(tmp_path / "a1.ovgraph", (1763800000, 1763800000))

    def run(action: str) -> dict[str, Any]:
        assert cli.main(["cache", action, "--json", "--cache-dir", str(tmp_path)]) == 0
        facts: dict[str, Any] = json.loads(capsys.readouterr().out)
        return facts

    (entry,) = run("list")["entries"]
    assert datetime.fromisoformat(entry["last_used"]).timestamp() == entry["used"] == 1763800000
    facts = {"folder": str(tmp_path), "graphs": 1, "bytes": store.bytes, "bound": 1 << 30}
    assert run("info") == {**facts, "beside": {}}
    facts = run("verify")
    assert (facts["whole"], facts["damaged"], facts["old"], facts["beside"]) == (1, {}, [], {})


def test_what_lies_beside_the_graphs_is_told_verified_and_cleared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    graphs, *beside = open_all(Settings(cache_dir=str(tmp_path)))
    assert graphs.put("a1", {"x": b"1"})

    def run(*arguments: str) -> tuple[int, list[str]]:
        code = cli.main(["cache", *arguments, "--cache-dir", str(tmp_path)])
        return code, capsys.readouterr().out.splitlines()

    for number, store in enumerate(beside, 2):
        assert store.put("b2", {"x": b"2" * 100})
        name = f"{store.folder.relative_to(tmp_path)}"[:-1]
        code, told = run("info")
        assert (code, len(told)) == (0, number)
        assert any(line.startswith(f"1 {name}, ") and line.endswith(f", in {store.folder}") for line in told)
        (entry,) = store.entries()
        whole = entry.path.read_bytes()
        entry.path.write_bytes(whole[:50])
        code, told = run("verify")
        assert (code, [line for line in told if "b2 is damaged" in line and str(entry.path) in line] != []) == (1, True)
        entry.path.write_bytes(whole)
        assert run("verify")[0] == 0
    assert run("clear", "--yes") == (0, [f"1 graph, 1 blob, 1 recipe, 1 run removed from {tmp_path}."])
    assert not any(store.entries() for store in (graphs, *beside))
    beside[0].folder.chmod(0o777)  # nothing is in it
    assert run("clear", "--yes") == (0, [f"0 graphs removed from {tmp_path}."])


def test_the_cache_is_listed_verified_and_cleared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = GraphStore(tmp_path)
    store.put("a1", {"x": b"1" * 1000})
    store.put("b2", {"x": b"2" * 1000})
    (tmp_path / "somebody's.txt").write_text("stays")

    def run(*arguments: str) -> tuple[int, Any]:
        code = cli.main(["cache", *arguments, "--json", "--cache-dir", str(tmp_path)])
        return code, json.loads(capsys.readouterr().out)

    code, info = run("info")
    assert (code, info["graphs"], info["bytes"]) == (0, 2, store.bytes)
    assert {entry["key"] for entry in run("list")[1]["entries"]} == {"a1", "b2"}
    assert run("verify")[0] == 0
    entry = store.entries()[0]
    entry.path.write_bytes(entry.path.read_bytes()[:50])
    code, info = run("verify")
    assert (code, list(info["damaged"])) == (1, [entry.key])
    assert cli.main(["cache", "verify", "--cache-dir", str(tmp_path)]) == 1
    assert f"{entry.key} is damaged" in capsys.readouterr().out
    (tmp_path / f"{entry.key}.ovgraph").unlink()
    GraphStore(tmp_path, kind=replace(GRAPHS, format="ov_backend graph 1")).put("c3", {"x": b"3"})
    code, info = run("verify")
    assert (code, info["old"], info["damaged"]) == (0, ["c3"], {}), "an entry of another version is no damage"
    assert cli.main(["cache", "verify", "--cache-dir", str(tmp_path)]) == 0
    assert "c3 is an old entry of another version" in capsys.readouterr().out
    run_store(tmp_path).put("d4", {"runs.json": b"{}"})
    recipe_store(tmp_path).put("e5", {"recipe.json": b"{}"})
    assert cli.main(["cache", "clear", "--cache-dir", str(tmp_path)]) == 2
    assert "clear would remove 2 graphs, 1 recipe, 1 run, " in (err := capsys.readouterr().err)
    assert "give --yes" in err
    assert len(run("list")[1]["entries"]) == 2
    facts = run("clear", "--yes")[1]
    assert (facts["removed"], facts["runs"], facts["recipes"]) == (2, 1, 1)
    assert not run_store(tmp_path).entries()
    assert not recipe_store(tmp_path).entries()
    assert run("info")[1]["graphs"] == 0
    assert (tmp_path / "somebody's.txt").read_text() == "stays"


BAD = [
    (["--size", "100x64"], "argument --size: The size 100x64 cannot be drawn: 100 is not a multiple of 8 from 64 to 4096. Write"),
    (["--size", "8"], "argument --size: The size 8x8 cannot be drawn: 8 is not"),
    (["--size", "99999992"], "99999992 is not a multiple of 8 from 64 to 4096"),
    (["--size", "-64"], "-64 is not a multiple of 8 from 64 to 4096"),
    (["--size", "big"], "'big' is no size"),
    (["--guidance", "-3"], "it takes a number from 1 (no guidance, and twice as fast) to 1000, as 7, not '-3'"),
    (["--steps", "0"], "argument --steps: it takes a whole number from 1 to 1000, such as 20, not '0'"),
    (["--steps", "1001"], "whole number from 1 to 1000, such as 20, not '1001'"),
    (["--steps", "many"], "whole number from 1 to 1000, such as 20, not 'many'"),
    (["--seed", "-2"], "argument --seed: it takes a whole number from -1 to"),
    (["--seed", "1.5"], "not '1.5'"),
    (["--device", "GPU.7"], "GPU.7"),
    (["--device", "TOASTER"], "TOASTER"),
    (["--precision", "f16"], "cannot compute in f16"),
    (["--precision", "f8"], "'f8' is no precision; give one of auto, f32, bf16, f16. See"),
    (["--precision", "int8"], "give one of auto, f32, bf16, f16, or use int8 in the page of"),
    (["--sampler", "guess"], "The sampler is 'guess'; it must be one of"),
    (["--sampler", "lcm", "--steps", "99"], "LCM takes at most 50 steps"),
    (["--out", "/nowhere/at/all.png"], "there is no folder '/nowhere/at'"),
    (["--out", "/proc/demo.png"], "cannot be written"),
    (["--out", "demo.jpg"], "must be the name of a .png file"),
    (["--checkpoint", "none.safetensors"], "none.safetensors is no file"),
    (["--zoom", "2"], "'--zoom' is not an option of this command; remove it. See python -m ov_backend demo --help."),
]


@pytest.mark.parametrize("arguments,words", BAD, ids=lambda value: " ".join(value) if isinstance(value, list) else "")
def test_bad_input_is_one_sentence(arguments: list[str], words: str, assert_refused: Refusal) -> None:
    from ov_backend.core.devices import list_devices

    if "f16" in arguments and "f16" in list_devices()[0].precisions:
        pytest.skip("this device computes in f16")
    assert_refused(["demo", *arguments], words)


def test_a_pickle_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.save({"state_dict": {}}, tmp_path / "model.ckpt")
    assert cli.main(["demo", "--checkpoint", str(tmp_path / "model.ckpt"), "--out", str(tmp_path / "x.png")]) == 2
    assert "model.ckpt is a pickle" in capsys.readouterr().err


def test_interruption_ends_cleanly(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("ov_backend.core.devices.list_devices", interrupted)
    assert cli.main(["devices"]) == 130
    assert capsys.readouterr().err.strip() == "Interrupted."
