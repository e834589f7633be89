"""How alike pictures in int8 are, by pictures and recipes that had no part in choosing its rules.

    python -m benchmarks int8_judging [--processes 4] [--out FOLDER] [--json] [--tiny]

The pictures of ``int8_pictures.JUDGING`` by the demo checkpoint in f32, in the device's own precision, and in int8 with eight
recipes. Each recipe is calibrated by a first picture of its own and draws every second picture. PSNR is against f32. It is
asserted that every recipe was used, and that no picture in the own precision is another one.
"""

from __future__ import annotations

import argparse
import os
import pickle
import queue
import statistics
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from benchmarks.command import parser_of, run_child, show, write_line, write_result
from benchmarks.int8_pictures import FIRST, JUDGING, Picture, demo_pipeline, draw
from ov_backend import Settings, accelerate
from ov_backend.core import devices
from ov_backend.ui.comparison import psnr

RECIPES = 8
EQUAL_DB = 99.0
#: Another seed's picture is below.
OTHER_DB = 15.0


def main() -> None:
    """Measure and print; with ``--job`` draw the pictures of one process."""
    parser = parser_of(__doc__, "four pictures and two recipes")
    parser.add_argument("--processes", type=int, default=1, help="that draw at the same time, each on its own cores")
    parser.add_argument("--job", help=argparse.SUPPRESS)
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    recipes = 2 if options.tiny else RECIPES
    pictures = JUDGING[:4] if options.tiny else JUDGING
    if options.job:
        draw_job(options.job, options.work, pictures)
        return
    with tempfile.TemporaryDirectory() as folder:
        drawn = draw_all(["f32", "auto", *map(str, range(recipes))], Path(folder), options)
    own = likeness(drawn["auto"], drawn["f32"])
    assert min(own) > OTHER_DB, f"the worst picture has {min(own):.1f} dB"
    int8 = {FIRST[number].prompt: likeness(drawn[str(number)], drawn["f32"][number % 2 :: 2]) for number in range(recipes)}
    show({"own": devices.resolved_precision(Settings()), "own_db": own, "int8_db": int8}, options, report)


def draw_all(jobs: Sequence[str], work: Path, options: argparse.Namespace) -> dict[str, list[np.ndarray]]:
    """The pictures of each job, drawn in processes of their own."""
    cores, free = sorted(os.sched_getaffinity(0)), queue.Queue[list[int]]()
    for number in range(options.processes):
        free.put(cores[number :: options.processes])

    def run(job: str) -> None:
        own = free.get()
        os.sched_setaffinity(0, own)  # of this thread; the child inherits it
        run_child("benchmarks.bench_int8_judging", options, "--job", job, "--work", work)
        free.put(own)

    with ThreadPoolExecutor(options.processes) as pool:
        list(pool.map(run, jobs))
    return {job: pickle.loads((work / job).read_bytes()) for job in jobs}


def draw_job(job: str, work: Path, pictures: Sequence[Picture]) -> None:
    """Draw the pictures of a precision, or every second one with a recipe; its first picture calibrates and does not count."""
    pipe, number = demo_pipeline(), int(job) if job.isdigit() else None
    settings = Settings(cache_dir=str(work / f"{job}-graphs"), fallback="raise", precision=job if number is None else "int8")
    with accelerate(pipe, settings) as accelerated:
        if number is not None:
            for steps in (FIRST[number].steps, 1):
                draw(pipe, replace(FIRST[number], steps=steps))
        drawn = [draw(pipe, picture) for picture in (pictures if number is None else pictures[number % 2 :: 2])]
        stated = accelerated.stats()["unet"]["int8"]
    assert number is None or stated["state"] == "on", stated
    (work / job).write_bytes(pickle.dumps(drawn))
    write_result(len(drawn))


def likeness(drawn: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> list[float]:
    """PSNR in dB of each picture."""
    return [min(EQUAL_DB, psnr(*map(Image.fromarray, pair))) for pair in zip(drawn, expected)]


def report(results: dict[str, Any], options: argparse.Namespace) -> None:
    """Print the medians and the worst pictures."""
    for name, values in ({results["own"]: results["own_db"]} | results["int8_db"]).items():
        write_line(f"{name:44} median {statistics.median(values):5.1f} dB, worst {min(values):5.1f}, {len(values)} pictures")


if __name__ == "__main__":
    main()
