"""The store, blobs, the cache command, a checkpoint and a network under Windows' rules for files, emulated."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from ov_backend import Settings
from ov_backend.cli import main as cli
from ov_backend.core import posix
from ov_backend.engine.engine import Engine
from ov_backend.store import ownership
from ov_backend.store.entry_file import BLOBS, GRAPHS, Kind
from ov_backend.store.store import GraphStore
from tests.helpers import windows
from tests.helpers.windows import RESERVED, Windows, check_name

pytestmark = pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="the rules are emulated with /proc")
KEY, OTHER = "ab" * 16, "cd" * 16
FILES = {"model.xml": b"<net/>" * 100, "graph.json": b"{}"}


@pytest.fixture(params=["graphs", "Grüße aus 日本 mit Leerzeichen"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return tmp_path / str(request.param)


@pytest.fixture
def rules(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Windows]:
    temporary = folder.parent / "temporärer Ordner"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    return windows.install(folder.parent, monkeypatch)


@pytest.mark.parametrize("kind", [GRAPHS, BLOBS], ids=["graphs", "blobs"])
def test_entries_are_stored_read_replaced_and_removed(folder: Path, rules: Windows, kind: Kind) -> None:
    store = GraphStore(folder, kind=kind)
    for _ in range(2):
        assert store.put(KEY, FILES)
        assert store.get(KEY) == FILES
    assert store.check() == ({}, [])
    assert store.remove(KEY)
    assert store.put(OTHER, FILES)
    assert store.clear() == 1
    assert list(folder.iterdir()) == []
    assert rules.refused == []


def test_a_damaged_entry_is_removed_although_it_was_just_open(folder: Path, rules: Windows) -> None:
    store = GraphStore(folder)
    store.put(KEY, FILES)
    (folder / f"{KEY}{GRAPHS.suffix}").write_bytes(b"damage")
    assert store.get(KEY) is None
    assert store.entries() == []
    assert rules.refused == []


def test_an_entry_that_another_process_reads_costs_a_warning_and_no_file(
    folder: Path, rules: Windows, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = GraphStore(folder)
    store.put(KEY, FILES)
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    with (folder / f"{KEY}{GRAPHS.suffix}").open("rb"):
        assert not store.put(KEY, FILES)
        assert store.clear() == 0
        assert not store.remove(KEY)
    assert len(caplog.records) == 1
    assert [path.suffix for path in folder.iterdir()] == [GRAPHS.suffix], "no temporary file is left"
    assert store.get(KEY) == FILES
    assert rules.refused


def test_an_entry_that_is_read_for_a_moment_is_replaced(folder: Path, rules: Windows, monkeypatch: pytest.MonkeyPatch) -> None:
    store = GraphStore(folder)
    store.put(KEY, FILES)
    reader = (folder / f"{KEY}{GRAPHS.suffix}").open("rb")
    monkeypatch.setattr(time, "sleep", lambda seconds: reader.close())
    assert store.put(KEY, FILES)
    assert store.get(KEY) == FILES


def test_files_of_killed_processes_are_found_by_their_age(folder: Path, rules: Windows) -> None:
    store = GraphStore(folder)
    store.put(KEY, FILES)
    young, old = (folder / f"abcdef0{i}.x{GRAPHS.temporary}" for i in (1, 2))
    for path in (young, old):
        path.write_bytes(b"half")
    os.utime(old, (0, 0))
    store.put(OTHER, FILES)
    assert (young.exists(), old.exists()) == (True, False)
    assert posix.is_locked(young) is None


def test_the_bound_holds(folder: Path, rules: Windows) -> None:
    store = GraphStore(folder, max_bytes=20_000)
    for i in range(6):
        assert store.put(f"{i:032x}", {"x": os.urandom(8_000)})
    assert store.bytes <= 20_000


def test_names_differ_in_more_than_their_case_and_are_not_reserved(folder: Path, rules: Windows) -> None:
    store = GraphStore(folder)
    for key in ("c0", "a1", "0"):
        store.put(key, FILES)
    names = [path.name for path in folder.iterdir()]
    assert len({name.lower() for name in names}) == 3
    assert not [name for name in names if RESERVED.fullmatch(name)]
    with pytest.raises(ValueError, match="no key"):
        store.get("AB")


def test_a_path_that_is_too_long_costs_one_warning(folder: Path, rules: Windows, caplog: pytest.LogCaptureFixture) -> None:
    store = GraphStore(folder / ("x" * 100) / ("y" * 150))
    assert not store.put(KEY, FILES)
    assert not store.put(KEY, FILES)
    assert store.get(KEY) is None
    assert len(caplog.records) == 1


@pytest.mark.parametrize("name", ["con", "nul.txt", "a:b", "what?", "ends "])
def test_a_folder_that_cannot_exist_costs_no_more_than_warnings(
    folder: Path, rules: Windows, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    store = GraphStore(folder / name)
    assert not store.put(KEY, FILES)
    assert store.get(KEY) is None
    assert len(caplog.records) <= 2, "one about writing, one about reading"


def test_a_folder_outside_of_the_profile_without_an_owner_is_refused(
    folder: Path, rules: Windows, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    folder.mkdir()
    monkeypatch.setattr(Path, "home", lambda: folder / "somebody")
    store = GraphStore(folder)
    assert not store.put(KEY, FILES)
    assert "lies outside of" in caplog.text
    monkeypatch.setattr(ownership, "windows_owner", lambda path: "S-1-5-21-1")
    monkeypatch.setattr(ownership, "windows_user", lambda: "S-1-5-21-1")
    assert store.put(KEY, FILES)


@pytest.mark.parametrize("action", ["info", "list", "verify", "clear"])
def test_the_cache_command(folder: Path, rules: Windows, action: str, capsys: pytest.CaptureFixture[str]) -> None:
    GraphStore(folder).put(KEY, FILES)
    agreed = ["--yes"] if action == "clear" else []
    assert cli.main(["cache", action, "--cache-dir", str(folder), *agreed]) == 0
    assert capsys.readouterr().err == ""
    assert rules.refused == []


@pytest.mark.parametrize("more", [{}, {"blob_cache": "on"}, {"precision": "bf16"}], ids=str)
def test_a_network_is_captured_stored_and_found(
    folder: Path, rules: Windows, strict: Callable[..., Settings], more: dict[str, Any]
) -> None:
    module, x = torch.nn.Linear(600, 600).eval(), torch.randn(2, 600)
    found = []
    for _ in range(2):
        engine = Engine(strict(cache_dir=str(folder), **more))
        network = engine.network("net", module, module.forward)
        torch.testing.assert_close(network(x), module(x), rtol=0.1, atol=0.1)
        found.append(engine.stats()["net"]["graph_hits"])
        engine.clear()
    assert found == [0, 1]
    assert rules.refused == []


def test_a_checkpoint_is_written_and_read(folder: Path, rules: Windows) -> None:
    pytest.importorskip("diffusers")
    from ov_backend.checkpoint import TOKENIZER, load_pipeline
    from tests.helpers.random_checkpoint import write_random_checkpoint

    if not TOKENIZER.is_dir():
        pytest.skip("the project's own vocabulary is not here")
    path = write_random_checkpoint(folder / "Prüfung 1.safetensors")
    assert load_pipeline(path).unet.config.sample_size == 32
    path.unlink()
    assert rules.refused == [], "nothing keeps the file open or mapped"


def test_the_rules_refuse_what_windows_refuses(folder: Path, rules: Windows) -> None:
    folder.mkdir()
    path = folder / "open.txt"
    with path.open("w"):
        for action in (path.unlink, lambda: path.rename(folder / "other"), lambda: path.replace(folder / "other")):
            with pytest.raises(PermissionError):
                action()
    path.unlink()
    assert not hasattr(os, "fork")
    with pytest.raises(PermissionError):
        os.open(folder, os.O_RDONLY)
    for name in ("NUL", "aux.txt", "a|b", "x" * 300):
        with pytest.raises(OSError):  # noqa: PT011
            check_name(folder / name)
