"""Faults of the disk: each one costs no more than a cache miss and a warning."""

from __future__ import annotations

import logging
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ov_backend.store.entry_file import GRAPHS
from ov_backend.store.store import GraphStore
from tests.helpers.store_worker import KEYS, files

WORKER = Path(__file__).parents[1] / "helpers" / "store_worker.py"
KILLS = 200


def run(*arguments: object, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run one worker process until it ends."""
    command = [sys.executable, "-I", "-S", str(WORKER), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=check, timeout=60)


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that any user can reach (pytest's own belong to one user alone)."""
    path = Path(tempfile.mkdtemp(prefix="ov_backend-test-"))
    path.chmod(0o755)
    yield path / "graphs"
    shutil.rmtree(path)


def assert_usable(folder: Path) -> None:
    """The store can be read, filled, verified and cleared, and leaves no file behind."""
    store = GraphStore(folder, 200_000)
    assert store.check() == ({}, []), "there is an incomplete entry"
    for key in KEYS:
        assert store.get(key) in (None, files(key))
    assert store.put(KEYS[0], files(KEYS[0]))
    assert store.get(KEYS[0]) == files(KEYS[0])
    assert store.bytes <= store.max_bytes
    assert not list(folder.glob(f"*{GRAPHS.temporary}")), "a temporary file of a killed process is left"
    store.clear()
    assert list(folder.iterdir()) == []


PHASES = ["open", "fdopen", "fsync", "replace", "mkdir"]


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("function", PHASES)
def test_a_process_killed_in_any_phase_of_a_write_leaves_a_usable_store(folder: Path, function: str, when: str) -> None:
    if function != "mkdir":
        folder.mkdir()
    assert run("phase", folder, function, when, check=False).returncode == -9
    assert_usable(folder)


def test_processes_killed_two_hundred_times_leave_a_usable_store(folder: Path) -> None:
    incomplete = int(run("kill", folder, KILLS).stdout)
    assert incomplete > 10, "too few processes were killed during a write for this test to be meaningful"
    assert_usable(folder)


def test_two_processes_can_fill_and_clear_a_store_at_once(folder: Path) -> None:
    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(lambda seed: run("work", folder, 2.0, seed), range(2)))
    for result in results:
        assert result.stderr == ""
        assert int(result.stdout) > 20
    assert_usable(folder)


@pytest.mark.parametrize("free_bytes", [0, 100, 20_000])
def test_a_full_disk_costs_one_warning(folder: Path, free_bytes: int) -> None:
    """A limit on file sizes makes the same calls fail as a full disk, with EFBIG in place of ENOSPC."""
    result = run("small files only", folder, free_bytes)
    assert result.stdout.split() == ["False", "False"]
    assert result.stderr.count("WARNING") == 1
    assert result.stderr.count("\n") == 1
    assert "kept in memory only" in result.stderr
    assert list(folder.iterdir()) == []
    assert_usable(folder)


def test_a_full_file_system_costs_one_warning(folder: Path) -> None:
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=32k,mode=755", "tmpfs", str(folder)]
    if not shutil.which("mount") or subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("mounting a small file system is not allowed here; see the test above")
    try:
        result = run("put and get", folder)
        assert result.stdout.split() == ["False", "False"]
        assert "No space left on device" in result.stderr
        assert result.stderr.count("WARNING") == 1
        assert list(folder.iterdir()) == []
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def test_a_read_only_folder_is_read(folder: Path) -> None:
    GraphStore(folder).put(KEYS[0], files(KEYS[0]))
    folder.chmod(0o555)
    (folder / f"{KEYS[0]}{GRAPHS.suffix}").chmod(0o444)
    if os.getuid() == 0:
        shutil.chown(folder, 0, 0)
    result = run("as nobody", folder)
    assert result.stdout.split() == ["False", "True"], "existing entries are read"
    assert result.stderr.count("WARNING") == 1
    assert "Permission denied" in result.stderr
    folder.chmod(0o755)
    assert_usable(folder)


@pytest.mark.parametrize("entry", [True, False], ids=["entry", "folder"])
def test_what_is_unreadable_is_a_miss(folder: Path, entry: bool) -> None:
    GraphStore(folder).put(KEYS[0], files(KEYS[0]))
    if entry:
        (folder / f"{KEYS[0]}{GRAPHS.suffix}").chmod(0)
    folder.chmod(0o555 if entry else 0)
    result = run("as nobody", folder)
    assert result.stdout.split() == ["False", "False"]
    assert entry or result.stderr.count("WARNING") == 2, "one warning about writing, one about reading"
    folder.chmod(0o755)
    assert_usable(folder)


def test_a_file_in_place_of_the_folder_is_kept(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder.write_text("mine")
    store = GraphStore(folder)
    assert not store.put(KEYS[0], files(KEYS[0]))
    assert store.get(KEYS[0]) is None
    assert store.clear() == 0
    assert folder.read_text() == "mine"
    assert caplog.text.count("kept in memory only") == 1


def _one_entry(folder: Path) -> tuple[GraphStore, Path, bytes]:
    """A store with one entry, the entry's path and its bytes."""
    store = GraphStore(folder)
    assert store.put(KEYS[0], {"model.xml": b"<net/>" * 20, "model.bin": b"\1\2\3", "graph.json": b"{}"})
    path = folder / f"{KEYS[0]}{GRAPHS.suffix}"
    return store, path, path.read_bytes()


def test_every_truncation_is_a_miss(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    store, path, whole = _one_entry(folder)
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        assert GraphStore(folder).get(KEYS[0]) is None
        assert not path.exists()
    path.write_bytes(whole[:-1])
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        assert store.get(KEYS[0]) is None
        assert store.get(KEYS[0]) is None
    assert len(caplog.records) == 1
    assert "\n" not in caplog.records[0].getMessage()
    assert not store.remove(KEYS[0]), "it is removed already"
    assert_usable(folder)


def test_every_flipped_byte_is_a_miss_or_has_no_effect(folder: Path) -> None:
    _, path, whole = _one_entry(folder)
    expected = GraphStore(folder).get(KEYS[0])
    generator = random.Random(0)
    misses = 0
    for i in range(len(whole)):
        damaged = bytearray(whole)
        damaged[i] ^= 1 << generator.randrange(8)
        path.write_bytes(damaged)
        entry = GraphStore(folder).get(KEYS[0])
        assert entry is None or entry == expected, f"byte {i} changes what is read"
        misses += entry is None
    assert misses > len(whole) // 2
    assert GraphStore(folder).put(KEYS[0], files(KEYS[0])), "the damaged entry is replaced"
    assert GraphStore(folder).get(KEYS[0]) == files(KEYS[0])


def test_clearing_keeps_the_files_of_others(folder: Path) -> None:
    store, path, _ = _one_entry(folder)
    (path.parent / "precious.txt").write_text("mine")
    (path.parent / f"my notes{GRAPHS.suffix}").write_text("mine")
    (path.parent / f"thoughts{GRAPHS.suffix}").write_text("mine")
    (path.parent / f"{KEYS[1]}{GRAPHS.suffix}").mkdir()
    outside = folder.parent / "outside"
    outside.mkdir()
    (outside / f"{KEYS[2]}{GRAPHS.suffix}").write_text("mine")
    (outside / "more.txt").write_text("mine")
    (folder / f"{KEYS[3]}{GRAPHS.suffix}").symlink_to(outside / "more.txt")
    (folder / f"{KEYS[4]}{GRAPHS.suffix}").symlink_to(outside)
    assert store.clear() == 1
    remaining = sorted(path.name for path in folder.iterdir())
    links_and_folder = [f"{KEYS[i]}{GRAPHS.suffix}" for i in (1, 3, 4)]
    assert remaining == sorted(["precious.txt", f"my notes{GRAPHS.suffix}", f"thoughts{GRAPHS.suffix}", *links_and_folder])
    assert sorted(p.name for p in outside.iterdir()) == sorted([f"{KEYS[2]}{GRAPHS.suffix}", "more.txt"])
    assert (outside / "more.txt").read_text() == "mine"


def test_a_link_out_of_the_store_is_neither_read_nor_written_through(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    store, path, whole = _one_entry(folder)
    outside = folder.parent / "outside.zip"
    outside.write_bytes(whole)
    path.unlink()
    path.symlink_to(outside)
    assert store.get(KEYS[0]) is None
    assert len(caplog.records) == 1
    assert store.put(KEYS[0], files(KEYS[0]))
    assert not path.is_symlink()
    assert outside.read_bytes() == whole
    assert store.get(KEYS[0]) == files(KEYS[0])


def test_the_folder_itself_may_be_a_link(folder: Path) -> None:
    elsewhere = folder.parent / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "mine.txt").write_text("mine")
    folder.symlink_to(elsewhere)
    store = GraphStore(folder)
    assert store.put(KEYS[0], files(KEYS[0]))
    assert store.get(KEYS[0]) == files(KEYS[0])
    assert store.clear() == 1
    assert [p.name for p in elsewhere.iterdir()] == ["mine.txt"]


def test_a_pipe_in_place_of_an_entry_does_not_block(folder: Path) -> None:
    folder.mkdir()
    os.mkfifo(folder / f"{KEYS[0]}{GRAPHS.suffix}")
    store = GraphStore(folder)
    assert store.get(KEYS[0]) is None
    assert store.put(KEYS[0], files(KEYS[0]))
    assert store.get(KEYS[0]) == files(KEYS[0])
