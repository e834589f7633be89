"""Files that appear whole or not at all: the new content, or the old one and nothing beside it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ov_backend.core.atomic_file import atomic_write


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_the_old_content_stays_until_the_block_ends(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"old")
    with atomic_write(path) as file:
        file.write(b"new\r\n")
        file.flush()
        assert contents(tmp_path) == {"x": b"old", ".x.part": b"new\r\n"}
    assert contents(tmp_path) == {"x": b"new\r\n"}


@pytest.mark.parametrize("raised", [ValueError, OSError, KeyboardInterrupt])
def test_a_block_that_fails_leaves_what_was_there(tmp_path: Path, raised: type[BaseException]) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"old")

    def fail() -> None:
        with atomic_write(path) as file:
            file.write(b"half")
            raise raised

    with pytest.raises(raised):
        fail()
    assert contents(tmp_path) == {"x": b"old"}


def test_what_a_killed_process_left_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / ".x.part").write_bytes(b"half of something longer")
    with atomic_write(tmp_path / "x") as file:
        file.write(b"new")
    assert contents(tmp_path) == {"x": b"new"}


def test_a_name_that_is_a_folder_is_refused_and_nothing_is_left(tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    with pytest.raises(OSError, match="x"), atomic_write(tmp_path / "x") as file:
        file.write(b"new")
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


def test_a_link_under_the_temporary_name_is_not_followed(tmp_path: Path) -> None:
    """Somebody else who may write to the folder could lead it to any file."""
    if not hasattr(os, "O_NOFOLLOW"):
        pytest.skip("links cannot be refused here")
    (tmp_path / "precious").write_bytes(b"precious")
    (tmp_path / ".x.part").symlink_to(tmp_path / "precious")
    with pytest.raises(OSError, match="x"), atomic_write(tmp_path / "x"):
        pass
    assert contents(tmp_path) == {"precious": b"precious"}
