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

import psutil
import pytest
from PIL import Image

pytest.importorskip("diffusers")

from ov_backend.batch.journal import read_records
from ov_backend.batch.pictures import sha256
from tests.batch.conftest import MakeBatch
from tests.batch.standin import StandIn
from tests.helpers.extent import some

ROOT = Path(__file__).parents[2]
KILLS = int(os.environ.get("KILLS", "1"))
PLACES = ["here", "on Ray"]
#: Rows that are made between two kills, at most.
ROWS_PER_KILL = 60


def records(out: Path) -> int:
    return len(list(read_records(out)))


def wait_for(out: Path, count: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 120
    while records(out) < count:
        assert process.poll() is None, "the run ended by itself"
        assert time.monotonic() < deadline
        time.sleep(0.001)


def workers_of(process: subprocess.Popen[bytes]) -> list[psutil.Process]:
    """The processes on Ray that make pictures."""
    return [each for each in psutil.Process(process.pid).children(recursive=True) if each.name().startswith("ray::_Process")]


def kill_a_run(command: list[str], out: Path, chance: random.Random, on_ray: bool) -> None:
    """Start a run, let it make some pictures, and kill it; on Ray one of its workers first."""
    before, more = records(out), chance.randrange(1, ROWS_PER_KILL // 4)
    process = subprocess.Popen(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)})
    workers: list[psutil.Process] = []
    try:
        wait_for(out, before + more, process)
        time.sleep(chance.random() * 0.02)
        if on_ray:
            chance.choice(workers_of(process)).kill()
            wait_for(out, before + more + chance.randrange(1, ROWS_PER_KILL // 4), process)
            time.sleep(chance.random() * 0.02)
            workers = workers_of(process)
    finally:
        process.kill()
        process.wait()
    _, alive = psutil.wait_procs(workers, timeout=60)
    assert not alive, "processes are left behind"


@pytest.mark.skipif(os.name == "nt", reason="signals are POSIX's")
@pytest.mark.parametrize("where", some(["here"], PLACES) if KILLS == 1 else PLACES)
def test_a_killed_run_loses_no_row_makes_none_twice_and_leaves_no_broken_file(
    make_batch: MakeBatch, checkpoint: Path, tmp_path: Path, where: str
) -> None:
    if where == "on Ray":
        pytest.importorskip("ray")
    rows = [{"prompt": f"picture {i}", "seed": i, "size": "256x256"} for i in range(KILLS * ROWS_PER_KILL)]
    batch = make_batch(rows, contact_sheet=False)
    out, chance = tmp_path / "out", random.Random(os.environ.get("KILL_SEED", "0"))
    command = [sys.executable, "-m", "tests.batch.kill_child", str(tmp_path / "job.jsonl"), str(out), str(checkpoint)]
    for _ in range(KILLS):
        kill_a_run([*command, *(["2"] if where == "on Ray" else [])], out, chance, where == "on Ray")
    result = batch.run(renderer=StandIn())
    assert result.failed == 0
    assert result.made + result.skipped == len(rows)
    assert result.skipped >= KILLS, "what was there was not made again"
    lines = (out / "manifest.jsonl").read_bytes().splitlines()
    made = [json.loads(line) for line in lines if line.startswith(b"{") and line.endswith(b"}")]
    assert len(lines) - len(made) <= KILLS
    assert Counter(record["row"] for record in made) == Counter(range(1, len(rows) + 1))
    for record in made:
        assert sha256(out / record["file"]) == record["sha256"]
        with Image.open(out / record["file"]) as picture:
            picture.load()
            assert picture.getpixel((0, 0))[2] == record["row"] % 256  # the renderer of these tests draws the number of the row
    pictures = {record["file"] for record in made}
    assert {path.name for path in out.iterdir()} - {"manifest.parquet"} == {*pictures, "manifest.jsonl"}
