"""kill -9 at random moments: no row is lost, none is made twice, and no file is broken. KILLS=50 kills more often."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from PIL import Image

pytest.importorskip("diffusers")

from ov_backend.batch.fingerprints import sha256
from ov_backend.batch.journal import read_records
from tests.batch.conftest import MakeBatch
from tests.batch.standin import StandIn

ROOT = Path(__file__).parents[2]
KILLS = int(os.environ.get("KILLS", "1"))
#: Rows that are made between two kills, at most.
ROWS_PER_KILL = 60


def kill_a_run(jobs: Path, out: Path, checkpoint: Path, chance: random.Random) -> int:
    """Start a run, let it make some pictures, and kill it; returns the number of lines of the manifest."""
    command = [sys.executable, "-m", "tests.batch.kill_child", str(jobs), str(out), str(checkpoint)]
    before, more = len(list(read_records(out))), chance.randrange(1, ROWS_PER_KILL // 2)
    process = subprocess.Popen(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)})
    try:
        deadline = time.monotonic() + 120
        while len(list(read_records(out))) < before + more:
            assert process.poll() is None, "the run ended by itself"
            assert time.monotonic() < deadline
            time.sleep(0.001)
        time.sleep(chance.random() * 0.02)
    finally:
        process.kill()
        process.wait()
    return len(list(read_records(out)))


@pytest.mark.skipif(os.name == "nt", reason="signals are POSIX's")
def test_a_killed_run_loses_no_row_makes_none_twice_and_leaves_no_broken_file(
    make_batch: MakeBatch, checkpoint: Path, tmp_path: Path
) -> None:
    rows = [{"prompt": f"picture {i}", "seed": i, "size": "256x256"} for i in range(KILLS * ROWS_PER_KILL)]
    batch = make_batch(rows, contact_sheet=False)
    out, chance = tmp_path / "out", random.Random(os.environ.get("KILL_SEED", "0"))
    for _ in range(KILLS):
        kill_a_run(tmp_path / "job.jsonl", out, checkpoint, chance)
    result = batch.run(paints=StandIn())
    assert result.failed == 0
    assert result.made + result.skipped == len(rows)
    assert result.skipped >= KILLS, "what was there was not made again"
    lines = (out / "manifest.jsonl").read_bytes().splitlines()
    records = [json.loads(line) for line in lines if line.startswith(b"{") and line.endswith(b"}")]
    assert len(lines) - len(records) <= KILLS
    assert Counter(record["row"] for record in records) == Counter(range(1, len(rows) + 1))
    for record in records:
        assert sha256(out / record["file"]) == record["sha256"]
        with Image.open(out / record["file"]) as picture:
            picture.load()
            assert picture.getpixel((0, 0))[2] == record["row"] % 256  # the stand-in paints the row's number
    pictures = {record["file"] for record in records}
    assert {path.name for path in out.iterdir()} - {"manifest.parquet"} == {*pictures, "manifest.jsonl"}
