"""What may go wrong with a disk: each fault is planted, and never costs more than a miss and a line in the log."""

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

from ov_backend.cache.entry_file import GRAPHS
from ov_backend.cache.store import GraphStore
from tests.helpers.store_worker import KEYS, files

WORKER = Path(__file__).parents[1] / "helpers" / "store_worker.py"
KILLS = 200


def run(*arguments: object, check: bool = True) -> subprocess.CompletedProcess[str]:
    """One worker process, to its end."""
    command = [sys.executable, "-I", "-S", str(WORKER), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=check, timeout=60)


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that any user can reach (pytest's own belong to one user alone)."""
    path = Path(tempfile.mkdtemp(prefix="ov_backend-test-"))
    path.chmod(0o755)
    yield path / "graphs"
    shutil.rmtree(path)


def usable(folder: Path) -> None:
    """The store can be read, filled, checked and emptied, and leaves nothing behind."""
    store = GraphStore(folder, 200_000)
    assert store.verify() == {}, "half an entry is there"
    for key in KEYS:
        assert store.get(key) in (None, files(key))
    assert store.put(KEYS[0], files(KEYS[0]))
    assert store.get(KEYS[0]) == files(KEYS[0])
    assert store.bytes <= store.max_bytes
    assert not list(folder.glob(f"*{GRAPHS.temporary}")), "what the dead left is still there"
    store.clear()
    assert list(folder.iterdir()) == []


PHASES = ["open", "fdopen", "fsync", "replace", "mkdir"]


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("function", PHASES)
def test_trap_19_killed_in_every_phase_of_a_write(folder: Path, function: str, when: str) -> None:
    if function != "mkdir":
        folder.mkdir()
    assert run("phase", folder, function, when, check=False).returncode == -9
    usable(folder)


def test_trap_19_killed_two_hundred_times(folder: Path) -> None:
    half = int(run("kill", folder, KILLS).stdout)
    assert half > 10, "hardly any process was killed while it was writing: this test has tested nothing"
    usable(folder)


def test_two_processes_fill_and_clear_at_once(folder: Path) -> None:
    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(lambda seed: run("work", folder, 2.0, seed), range(2)))
    for result in results:
        assert result.stderr == ""
        assert int(result.stdout) > 20
    usable(folder)


@pytest.mark.parametrize("room", [0, 100, 20_000])
def test_trap_19_a_full_disk(folder: Path, room: int) -> None:
    """EFBIG comes from the same calls as ENOSPC does, and needs no disk of its own."""
    result = run("small files only", folder, room)
    assert result.stdout.split() == ["False", "False"]
    assert result.stderr.count("WARNING") == 1
    assert result.stderr.count("\n") == 1
    assert "kept in memory only" in result.stderr
    assert list(folder.iterdir()) == []
    usable(folder)


def test_a_disk_that_is_really_full(folder: Path) -> None:
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=32k", "tmpfs", str(folder)]
    if not shutil.which("mount") or subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("mounting a small file system is not allowed here; see the test above")
    try:
        result = run("plain", folder)
        assert result.stdout.split() == ["False", "False"]
        assert "No space left on device" in result.stderr
        assert result.stderr.count("WARNING") == 1
        assert list(folder.iterdir()) == []
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def test_a_folder_that_may_not_be_written(folder: Path) -> None:
    GraphStore(folder).put(KEYS[0], files(KEYS[0]))
    folder.chmod(0o555)
    (folder / f"{KEYS[0]}{GRAPHS.suffix}").chmod(0o444)
    if os.getuid() == 0:
        shutil.chown(folder, 0, 0)
    result = run("as nobody", folder)
    assert result.stdout.split() == ["False", "True"], "what is there is read all the same"
    assert result.stderr.count("WARNING") == 1
    assert "Permission denied" in result.stderr
    folder.chmod(0o755)
    usable(folder)


def test_a_folder_that_may_not_even_be_read(folder: Path) -> None:
    GraphStore(folder).put(KEYS[0], files(KEYS[0]))
    folder.chmod(0)
    result = run("as nobody", folder)
    assert result.stdout.split() == ["False", "False"]
    assert result.stderr.count("WARNING") == 2, "one of writing, one of reading"
    folder.chmod(0o755)
    usable(folder)


def test_an_entry_that_may_not_be_read(folder: Path) -> None:
    GraphStore(folder).put(KEYS[0], files(KEYS[0]))
    (folder / f"{KEYS[0]}{GRAPHS.suffix}").chmod(0)
    folder.chmod(0o555)
    result = run("as nobody", folder)
    assert result.stdout.split() == ["False", "False"]
    folder.chmod(0o755)
    usable(folder)


def test_a_file_where_the_folder_should_be(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder.write_text("mine")
    store = GraphStore(folder)
    assert not store.put(KEYS[0], files(KEYS[0]))
    assert store.get(KEYS[0]) is None
    assert store.clear() == 0
    assert folder.read_text() == "mine"
    assert caplog.text.count("kept in memory only") == 1


def _one(folder: Path) -> tuple[GraphStore, Path, bytes]:
    store = GraphStore(folder)
    assert store.put(KEYS[0], {"model.xml": b"<net/>" * 20, "model.bin": b"\1\2\3", "graph.json": b"{}"})
    path = folder / f"{KEYS[0]}{GRAPHS.suffix}"
    return store, path, path.read_bytes()


def test_every_truncation_is_a_miss(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    store, path, whole = _one(folder)
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        assert GraphStore(folder).get(KEYS[0]) is None
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        assert store.get(KEYS[0]) is None
        assert store.get(KEYS[0]) is None
    assert len(caplog.records) == 1
    assert "\n" not in caplog.records[0].getMessage()
    usable(folder) if store.remove(KEYS[0]) else pytest.fail("it could not be removed")


def test_every_flipped_byte_is_a_miss_or_no_matter(folder: Path) -> None:
    _, path, whole = _one(folder)
    right = GraphStore(folder).get(KEYS[0])
    generator = random.Random(0)
    misses = 0
    for i in range(len(whole)):
        damaged = bytearray(whole)
        damaged[i] ^= 1 << generator.randrange(8)
        path.write_bytes(damaged)
        found = GraphStore(folder).get(KEYS[0])
        assert found is None or found == right, f"byte {i} changes what is read"
        misses += found is None
    assert misses > len(whole) // 2
    assert GraphStore(folder).put(KEYS[0], files(KEYS[0])), "the entry is made anew in the damaged one's place"
    assert GraphStore(folder).get(KEYS[0]) == files(KEYS[0])


def test_trap_18_clearing_removes_nothing_of_anybody_elses(folder: Path) -> None:
    store, path, _ = _one(folder)
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
    left = sorted(p.name for p in folder.iterdir())
    links_and_folder = [f"{KEYS[i]}{GRAPHS.suffix}" for i in (1, 3, 4)]
    assert left == sorted(["precious.txt", f"my notes{GRAPHS.suffix}", f"thoughts{GRAPHS.suffix}", *links_and_folder])
    assert sorted(p.name for p in outside.iterdir()) == sorted([f"{KEYS[2]}{GRAPHS.suffix}", "more.txt"])
    assert (outside / "more.txt").read_text() == "mine"


def test_a_link_out_of_the_store_is_neither_read_nor_written_through(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    store, path, whole = _one(folder)
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


def test_a_folder_that_is_a_link_is_the_users_wish(folder: Path) -> None:
    elsewhere = folder.parent / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "mine.txt").write_text("mine")
    folder.symlink_to(elsewhere)
    store = GraphStore(folder)
    assert store.put(KEYS[0], files(KEYS[0]))
    assert store.get(KEYS[0]) == files(KEYS[0])
    assert store.clear() == 1
    assert [p.name for p in elsewhere.iterdir()] == ["mine.txt"]


def test_a_pipe_in_an_entrys_place_blocks_nobody(folder: Path) -> None:
    folder.mkdir()
    os.mkfifo(folder / f"{KEYS[0]}{GRAPHS.suffix}")
    store = GraphStore(folder)
    assert store.get(KEYS[0]) is None
    assert store.put(KEYS[0], files(KEYS[0]))
    assert store.get(KEYS[0]) == files(KEYS[0])
