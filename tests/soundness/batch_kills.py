"""Kills driver, workers and machines of batches on Ray, at random moments: every row is there once and whole in the end.

    python -m tests.soundness.batch_kills [--count 50] [--seed 0] [--rows 60] [--folder FOLDER]

Each run is a job of its own, on a cluster of two nodes of this machine. One to three of its parts are killed with SIGKILL: the
driver, which is then started again; a process that makes pictures; the second node with all that runs there, which is then
replaced. At the end of every run the whole folder is checked. A stand-in makes the pictures.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
from PIL import Image

from ov_backend.batch.cluster import import_ray
from ov_backend.batch.journal import read_records
from ov_backend.batch.pictures import sha256
from tests.helpers.random_checkpoint import write_random_checkpoint

ROOT = Path(__file__).parents[2]
KINDS = ("driver", "worker", "node")
#: The longest time from the start of a driver to its first picture, and of a run.
PATIENCE_S = 300.0
#: The longest time after which a kill that does not wait for pictures comes: it may meet processes that are starting.
_START_S = 8.0
_FROM_THE_START = 0.25
#: How often a node is started.
_TRIES = 5


def say(text: str) -> None:
    """Write a line at once."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


class Nodes:
    """A cluster of two nodes: the head, which stays, and a second one that can be killed."""

    def __init__(self) -> None:
        os.environ.setdefault("RAY_worker_niceness", "0")  # else it takes minutes where anything else runs
        import_ray()
        from ray.cluster_utils import Cluster

        self._size = {"num_cpus": 1, "object_store_memory": 80 << 20}
        system = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 500}
        arguments = {**self._size, "include_dashboard": False, "_system_config": system}
        self.cluster = _retried(lambda: Cluster(initialize_head=True, head_node_args=arguments))
        self.address: str = self.cluster.address
        self.replace_second()

    def kill_second(self) -> None:
        """Kill the second node with everything that runs there."""
        raylet = psutil.Process(self._second.all_processes["raylet"][0].process.pid)
        for process in (*raylet.children(recursive=True), raylet):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self.cluster.remove_node(self._second, allow_graceful=False)

    def replace_second(self) -> None:
        """Start another node in its place."""
        self._second = _retried(lambda: self.cluster.add_node(**self._size))
        self.cluster.wait_for_nodes()

    def workers(self) -> list[psutil.Process]:
        """The processes that make pictures."""
        processes = []
        for node in self.cluster.list_all_nodes():
            with contextlib.suppress(psutil.NoSuchProcess):
                raylet = psutil.Process(node.all_processes["raylet"][0].process.pid)
                processes += [each for each in raylet.children() if _name(each).startswith("ray::_Process")]
        return processes


def _retried(start: Callable[[], Any]) -> Any:
    """Start a node; on a busy machine Ray gives up after half a minute, and is asked again."""
    for _ in range(_TRIES - 1):
        try:
            return start()
        except Exception as error:  # Ray raises no class of its own
            say(f"a node did not start: {type(error).__name__}")
    return start()


def _name(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.NoSuchProcess):
        return str(process.name())
    return ""


class Run:
    """One job of so many rows in one folder; ``chance`` draws what is killed and when."""

    def __init__(self, nodes: Nodes, folder: Path, checkpoint: Path, rows: int, chance: random.Random) -> None:
        self._nodes, self._rows, self._chance = nodes, rows, chance
        self.out, job = folder / "out", folder / "job.jsonl"
        folder.mkdir()
        kinds = [{"prompt": f"picture {i}", "seed": i, "size": f"64x{64 * (1 + i % 3)}"} for i in range(rows)]
        job.write_text("\n".join(map(json.dumps, kinds)), encoding="utf-8")
        self._command = [sys.executable, "-m", "tests.batch.kill_child", *map(str, (job, self.out, checkpoint)), nodes.address]

    def all(self) -> Counter[str]:
        """Run the job to its end, with kills on the way; how often what was killed."""
        kills = Counter[str]()
        plan = self._chance.sample(KINDS, self._chance.randrange(1, len(KINDS) + 1))
        process = self._start()
        for kind in plan:
            if not self._wait_for_moment(process):
                break
            if not self._kill(kind, process):
                continue
            kills[kind] += 1
            if kind == "driver":
                process = self._start()
        code = process.wait(PATIENCE_S)
        if code:
            say(f"the driver ended with {code}")
        if kills["node"]:
            self._nodes.replace_second()
        return kills

    def _start(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(self._command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)})

    def _made(self) -> int:
        return sum(1 for _ in read_records(self.out))

    def _wait_for_moment(self, process: subprocess.Popen[bytes]) -> bool:
        """Wait for a random moment; False if the run has ended before."""
        until, target = time.monotonic() + PATIENCE_S, self._chance.randrange(self._made(), self._rows + 1)
        if self._chance.random() < _FROM_THE_START:
            until, target = time.monotonic() + self._chance.random() * _START_S, self._rows
        while time.monotonic() < until and self._made() < target:
            if process.poll() is not None:
                return False
            time.sleep(0.002)
        time.sleep(self._chance.random() * 0.02)
        return process.poll() is None

    def _kill(self, kind: str, process: subprocess.Popen[bytes]) -> bool:
        """Kill something; False if there is none at this moment."""
        if kind == "node":
            self._nodes.kill_second()
        elif kind == "worker":
            workers = self._nodes.workers()
            if not workers:
                return False
            with contextlib.suppress(psutil.NoSuchProcess):
                self._chance.choice(workers).kill()
        else:
            workers = self._nodes.workers()
            process.kill()
            process.wait()
            psutil.wait_procs(workers, timeout=60)
        return True

    def faults(self) -> Counter[str]:
        """What is wrong in the folder after the run: rows lost, made twice or failed, broken files, files too many."""
        records = list(read_records(self.out))
        rows = Counter(record["row"] for record in records)
        found = Counter({"lost": sum(not rows[i] for i in range(1, self._rows + 1)), "twice": sum(n > 1 for n in rows.values())})
        found["failed"] = sum(bool(record["error"]) for record in records)
        found["broken"] = sum(not self._is_whole(record) for record in records if record["file"])
        expected = {record["file"] for record in records} | {"manifest.jsonl", "manifest.parquet"}
        found["too many"] = sum(path.name not in expected for path in self.out.iterdir())
        return +found

    def _is_whole(self, record: dict[str, Any]) -> bool:
        path = self.out / record["file"]
        try:
            with Image.open(path) as picture:
                colour = picture.convert("RGB").getpixel((0, 0))
        except OSError:
            return False
        return sha256(path) == record["sha256"] and isinstance(colour, tuple) and colour[2] == record["row"] % 256


def run(folder: Path, count: int, seed: int, rows: int) -> tuple[Counter[str], Counter[str], int]:
    """Run so many jobs; what was killed, what was wrong, and the number of workers that are left behind."""
    chance, kills, faults = random.Random(seed), Counter[str](), Counter[str]()
    checkpoint = write_random_checkpoint(folder / "small.safetensors")
    nodes = Nodes()
    try:
        for number in range(1, count + 1):
            start, each = time.monotonic(), Run(nodes, folder / f"run{number}", checkpoint, rows, chance)
            killed = each.all()
            found = each.faults()
            kills, faults = kills + killed, faults + found
            say(f"run {number}: killed {_text(killed)}; wrong: {_text(found)}; {time.monotonic() - start:.0f} s")
        _, left = psutil.wait_procs(nodes.workers(), timeout=60)
    finally:
        nodes.cluster.shutdown()
    return kills, faults, len(left)


def _text(counts: Counter[str]) -> str:
    return ", ".join(f"{number} {name}" for name, number in counts.items()) or "nothing"


@contextlib.contextmanager
def _folder(given: Path | None) -> Iterator[Path]:
    if given is not None:
        yield given
        return
    with tempfile.TemporaryDirectory() as new:
        yield Path(new)


def main() -> int:
    """Run all, and say what was seen; 1 if anything was wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=50, help="of runs")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rows", type=int, default=60, help="of each run")
    parser.add_argument("--folder", type=Path, help="of jobs and pictures; the default is a temporary one")
    options = parser.parse_args()
    with _folder(options.folder) as folder:
        kills, faults, left = run(folder, options.count, options.seed, options.rows)
    say(f"{options.count} runs of {options.rows} rows, seed {options.seed}: killed {_text(kills)}; wrong: {_text(faults)};"
        f" processes left behind: {left}")
    return 1 if faults or left else 0


if __name__ == "__main__":
    sys.exit(main())
