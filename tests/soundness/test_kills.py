"""A few processes that give weights back are killed, and a batch on Ray.

``python -m tests.soundness.kills``, ``picture_kills`` and ``batch_kills`` kill many.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.disk import on_disk
from tests.helpers.extent import only_in_full

ROOT = Path(__file__).parents[2]


def harness(name: str, count: int, *options: str) -> str:
    """What a harness prints that kills ``count`` processes; it must end well."""
    command = [sys.executable, "-m", f"tests.soundness.{name}", "--count", str(count), *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_killed_process_leaves_nothing_and_the_next_one_answers_rightly(tmp_path: Path) -> None:
    on_disk(tmp_path)
    assert "left on the disk: nothing" in harness("kills", 2, "--folder", str(tmp_path))


@only_in_full
def test_a_picture_after_a_kill_while_weights_are_given_back_is_right(tmp_path: Path) -> None:
    on_disk(tmp_path)
    assert "left on the disk: nothing" in harness("picture_kills", 3, "--folder", str(tmp_path))


@only_in_full
def test_a_batch_whose_driver_worker_or_node_is_killed_has_every_row_once() -> None:
    pytest.importorskip("ray")
    assert "wrong: nothing; processes left behind: 0" in harness("batch_kills", 2)
