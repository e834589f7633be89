"""A process that dies while it prepares leaves a mark; one that lives, or has ended preparing, leaves none."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from ov_backend.engine.crash_sentinel import CrashSentinel

_KILLED = """
import os, pathlib, sys
from ov_backend.engine.crash_sentinel import CrashSentinel
CrashSentinel(pathlib.Path(sys.argv[1])).set()
os._exit(9)
"""


def test_a_process_that_dies_leaves_a_mark_until_it_is_forgotten(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", _KILLED, str(tmp_path)], check=False, env={**os.environ, "PYTHONPATH": str(Path.cwd())})
    marker = CrashSentinel(tmp_path)
    assert marker.died()
    marker.set()
    marker.remove()
    assert marker.died(), "another process's mark"
    marker.forget()
    assert not marker.died()


def test_a_process_that_lives_is_not_dead(tmp_path: Path) -> None:
    CrashSentinel(tmp_path).set()
    assert not CrashSentinel(tmp_path).died()
    CrashSentinel(tmp_path).forget()
    assert list(tmp_path.iterdir())


def test_a_mark_older_than_the_process_of_its_number_is_another_ones(tmp_path: Path) -> None:
    path = tmp_path / f"{os.getpid()}.preparing"
    path.touch()
    os.utime(path, (1000, 1000))
    assert CrashSentinel(tmp_path).died()


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    marker = CrashSentinel(tmp_path / "file" / "graphs")
    marker.set()
    marker.remove()
    assert not marker.died()
