"""How alike pictures in int8 are, by pictures and recipes that had no part in choosing its rules.

    python -m benchmarks int8_judging [--processes 4] [--choosing] [--grid FILE] [--out FOLDER] [--json] [--tiny]

The pictures of ``int8_pictures.JUDGING`` by the demo checkpoint in f32, in the device's own precision, and in int8 with ten
recipes. Each recipe is calibrated by a first picture of its own and draws some of them (:func:`judged_by`). PSNR is against f32.
It is asserted that every recipe was used, and that no picture in the own precision is another one. ``--grid`` writes the eight
pictures that int8 has worst, each in f32, in the own precision and in int8. ``--choosing`` draws ``int8_pictures.CHOOSING``
instead: a change of the rules is tried on these.
"""

from __future__ import annotations

import argparse
import os
import pickle
import queue
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from benchmarks.command import parser_of, run_child, show, write_line, write_result
from benchmarks.int8_pictures import CHOOSING, FIRST, JUDGING, Picture, demo_pipeline, draw
from ov_backend import Settings, accelerate
from ov_backend.core import devices
from ov_backend.ui.comparison import psnr

RECIPES = 10
#: Pictures that each recipe draws: with ten recipes every picture is drawn by four or five of them.
JUDGED_BY_RECIPE = 20
EQUAL_DB = 99.0
#: Another seed's picture is below.
OTHER_DB = 15.0
#: Pictures of the grid, and the side and the height of the label of each.
WORST, SIDE, LABEL = 8, 256, 16


def main() -> None:
    """Measure and print; with ``--job`` draw the pictures of one process."""
    parser = parser_of(__doc__, "four pictures and two recipes")
    parser.add_argument("--processes", type=int, default=1, help="that draw at the same time, each on its own cores")
    parser.add_argument("--choosing", action="store_true", help="the pictures by which rules are chosen")
    parser.add_argument("--grid", type=Path, help="file of the pictures that int8 has worst, as .webp or .png")
    parser.add_argument("--job", help=argparse.SUPPRESS)
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    pictures = CHOOSING if options.choosing else JUDGING
    pictures = pictures[:4] if options.tiny else pictures
    if options.job:
        draw_job(options.job, options.work, pictures)
        return
    own, recipes = devices.resolved_precision(Settings()), range(2 if options.tiny else RECIPES)
    references = dict.fromkeys(("f32", own))
    jobs = [*(f"{precision} {half}" for precision in references for half in (0, 1)), *map(str, recipes)]
    with tempfile.TemporaryDirectory() as folder:
        drawn = draw_all(jobs, Path(folder), options)
    f32, in_own = ({**drawn[f"{precision} 0"], **drawn[f"{precision} 1"]} for precision in ("f32", own))
    own_db = likeness(in_own, f32)
    assert min(own_db.values()) > OTHER_DB, f"the worst picture has {min(own_db.values()):.1f} dB"
    int8_db = {recipe: likeness(drawn[str(recipe)], f32) for recipe in recipes}
    if options.grid:
        rows = []
        for number, recipe, db in worst_of(int8_db):
            shown = {f"f32: {pictures[number].prompt}": f32, f"{own}: {own_db[number]:.1f} dB": in_own}
            shown[f"int8: {db:.1f} dB, {pictures[number].sampler}"] = drawn[str(recipe)]
            rows.append([(label, by_number[number]) for label, by_number in shown.items()])
        grid(rows).save(options.grid)
    by_prompt = {FIRST[recipe].prompt: list(values.values()) for recipe, values in int8_db.items()}
    measured = [own_db[number] for number in sorted(own_db)] if own != "f32" else []
    show({"own": own, "own_db": measured, "int8_db": by_prompt}, options, report, "choosing" if options.choosing else "")


def judged_by(recipe: int, count: int) -> list[int]:
    """Which of so many pictures a recipe draws: neighbours in an order that mixes scenes, samplers and sizes."""
    first = recipe * JUDGED_BY_RECIPE
    return [7 * number % count for number in range(first, first + min(JUDGED_BY_RECIPE, count))]


def draw_all(jobs: Sequence[str], work: Path, options: argparse.Namespace) -> dict[str, dict[int, np.ndarray]]:
    """The pictures of each job by their numbers, drawn in processes of their own."""
    cores, free = sorted(os.sched_getaffinity(0)), queue.Queue[list[int]]()
    for number in range(options.processes):
        free.put(cores[number :: options.processes])

    def run(job: str) -> None:
        own = free.get()
        os.sched_setaffinity(0, own)  # of this thread; the child inherits it
        which = ["--choosing"] if options.choosing else []
        run_child("benchmarks.bench_int8_judging", options, "--job", job, "--work", work, *which)
        free.put(own)

    with ThreadPoolExecutor(options.processes) as pool:
        list(pool.map(run, jobs))
    return {job: pickle.loads((work / job).read_bytes()) for job in jobs}


def draw_job(job: str, work: Path, pictures: Sequence[Picture]) -> None:
    """Draw half of the pictures in a precision, or some with a recipe, whose first picture calibrates and does not count.

    Args:
        job: as "f32 0" for the first half, or the number of a recipe.
        work: folder of what is drawn.
        pictures: all of them.
    """
    pipe, recipe, (precision, _, half) = demo_pipeline(), int(job) if job.isdigit() else None, job.partition(" ")
    settings = Settings(cache_dir=str(work / f"{job}-graphs"), fallback="raise")
    settings = settings.replace(precision=precision if recipe is None else "int8")
    numbers = range(int(half), len(pictures), 2) if recipe is None else judged_by(recipe, len(pictures))
    with accelerate(pipe, settings) as accelerated:
        if recipe is not None:
            for steps in (FIRST[recipe].steps, 1):
                draw(pipe, replace(FIRST[recipe], steps=steps))
        drawn = {number: draw(pipe, pictures[number]) for number in numbers}
        stated = accelerated.stats()["unet"]["int8"]
    assert recipe is None or stated["state"] == "on", stated
    (work / job).write_bytes(pickle.dumps(drawn))
    write_result(len(drawn))


def likeness(drawn: Mapping[int, np.ndarray], expected: Mapping[int, np.ndarray]) -> dict[int, float]:
    """PSNR in dB of each picture, by its number."""
    return {n: min(EQUAL_DB, psnr(*map(Image.fromarray, (picture, expected[n])))) for n, picture in drawn.items()}


def worst_of(int8_db: Mapping[int, Mapping[int, float]]) -> list[tuple[int, int, float]]:
    """The numbers of the pictures that int8 has worst, each with the recipe that has it worst and its PSNR, the worst first."""
    found = sorted((db, number, recipe) for recipe, values in int8_db.items() for number, db in values.items())
    first = {number: (number, recipe, db) for db, number, recipe in reversed(found)}
    return sorted(first.values(), key=lambda each: each[2])[:WORST]


def grid(rows: Sequence[Sequence[tuple[str, np.ndarray]]]) -> Image.Image:
    """Pictures with labels above them, two rows of pictures side by side."""
    columns = len(rows[0])
    image = Image.new("RGB", (2 * columns * SIDE, -(-len(rows) // 2) * (SIDE + LABEL)), "white")
    pen, font = ImageDraw.Draw(image), ImageFont.load_default()
    for number, row in enumerate(rows):
        top = number // 2 * (SIDE + LABEL)
        for column, (label, picture) in enumerate(row):
            left = (number % 2 * columns + column) * SIDE
            pen.text((left + 4, top + 2), label, fill="black", font=font)
            image.paste(Image.fromarray(picture).resize((SIDE, SIDE), Image.Resampling.LANCZOS), (left, top + LABEL))
    return image


def report(results: dict[str, Any], options: argparse.Namespace) -> None:
    """Print the medians and the worst pictures."""
    own = {results["own"]: results["own_db"]} if results["own_db"] else {}
    for name, values in (own | results["int8_db"]).items():
        write_line(f"{name:44} median {statistics.median(values):5.1f} dB, worst {min(values):5.1f}, {len(values)} pictures")


if __name__ == "__main__":
    main()
