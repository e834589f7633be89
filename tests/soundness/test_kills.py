"""A few processes that give weights back are killed; ``python -m tests.soundness.kills`` kills hundreds."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.helpers.disk import on_disk

ROOT = Path(__file__).parents[2]


def test_a_killed_process_leaves_nothing_and_the_next_one_answers_rightly(tmp_path: Path) -> None:
    on_disk(tmp_path)
    command = [sys.executable, "-m", "tests.soundness.kills", "--count", "2", "--folder", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "left on the disk: nothing" in done.stdout
