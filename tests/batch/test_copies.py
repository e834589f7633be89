"""Files of another machine: the same content under the same path is used, everything else is copied once and checked."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from ov_backend import posix
from ov_backend.batch.copies import Copies, FileServer
from ov_backend.batch.fingerprints import sha256
from ov_backend.batch.plan import shares
from ov_backend.batch.row import Row
from ov_backend.ui.infotext import Parameters


@pytest.fixture
def row(tmp_path: Path) -> Row:
    """A row with a checkpoint, a LoRA and a picture to start from."""
    paths = [tmp_path / name for name in ("model.safetensors", "style.safetensors", "start.png")]
    for path in paths:
        path.write_bytes(path.name.encode() * 1000)
    return Row(1, 1, Parameters("x", seed=1), paths[0], "f32", paths[2], ((paths[1], 0.5),))


def test_files_that_are_here_are_used_and_others_are_copied_once(row: Row, tmp_path: Path) -> None:
    digests = {path: sha256(path) for path in row.inputs}
    contents = {path: path.read_bytes() for path in row.inputs}
    asked: list[str] = []

    def read(path: Path) -> Iterator[bytes]:
        asked.append(path.name)
        return iter([contents[path][:10], contents[path][10:]])

    assert Copies(read, tmp_path / "copies").localized(row, digests) == row
    assert not asked
    row.inputs[0].unlink()
    row.inputs[2].write_bytes(b"of the same name, and another content")
    for _ in range(2):  # the second time as another process
        local = Copies(read, tmp_path / "copies").localized(row, digests)
        assert [sha256(path) for path in local.inputs] == list(digests.values())
        assert local.picture == row.picture
    assert sorted(asked) == ["model.safetensors", "style.safetensors"]
    assert {path.suffix for path in (tmp_path / "copies").iterdir()} == {".safetensors"}


def test_a_file_that_changes_while_it_is_copied_is_refused(row: Row, tmp_path: Path) -> None:
    digests = dict.fromkeys(row.inputs, "0" * 64)
    with pytest.raises(OSError, match="was changed while the batch runs"):
        Copies(FileServer().read, tmp_path / "copies").localized(row, digests)
    assert not list((tmp_path / "copies").iterdir())


def rows(count: int, width: int = 64, first: int = 1) -> list[Row]:
    return [Row(i, i, Parameters("x", seed=i, width=width), Path("a"), "f32") for i in range(first, first + count)]


def test_shares_are_groups_and_large_groups_are_divided() -> None:
    job = rows(100) + rows(2, 128, 101) + rows(2, 192, 103)
    several = list(shares(job, 2))
    assert [row for share in several for row in share] == job
    assert [len(share) for share in several] == [25, 25, 25, 25, 2, 2]
    assert [len(share) for share in shares(job, 1)] == [100, 2, 2]
    assert [len(share) for share in shares(rows(3), 8)] == [1, 1, 1]
    assert list(shares([], 2)) == []


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="threads cannot be bound here")
def test_processes_share_the_cores() -> None:
    before = os.sched_getaffinity(0)
    try:
        bound = []
        for index in range(len(before)):
            assert posix.use_cores(index, len(before)) == 1
            bound.append(os.sched_getaffinity(0))
            os.sched_setaffinity(0, before)
        assert set.union(*bound) == before
        assert posix.use_cores(7, 8) >= 1
        os.sched_setaffinity(0, before)
        assert posix.use_cores(0, 1) == len(before)
    finally:
        os.sched_setaffinity(0, before)
