"""The pictures of the demo checkpoint in f32, in the device's own precision and in int8: how alike, and what a classifier sees.

    python -m benchmarks.bench_int8_quality [--processes 2] [--pictures FOLDER] [--seeds 8] [--judged 1000]

One picture of another prompt calibrates int8. Then every sampler draws the prompts of ``bench_fidelity``, 256x256, in all
three precisions. With ``--judged`` a small classifier is trained on pictures in f32, and names the things in others, which the
own precision and int8 draw from the same noise. The processes have cores of their own, and nothing is downloaded. The folder
gets ``pictures.png``: for each sampler f32, the own precision and int8 in rows, the prompts in columns. It
is asserted that every picture in int8 was computed in int8.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import os
import pickle
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from benchmarks.bench_fidelity import PROMPTS
from benchmarks.bench_int8 import change_what_is_left_out
from benchmarks.command import parser_of, show, write_line
from benchmarks.int8_pictures import SAMPLERS, Picture, demo_pipeline
from benchmarks.int8_pictures import draw as draw_picture
from benchmarks.judge import JUDGED_SIZE, combinations, compare, trained
from ov_backend import Settings, accelerate
from ov_backend.core import devices
from ov_backend.hosts.standalone.suggestions import suggestions_for
from ov_backend.model.transformations import layers_in_8_bits
from ov_backend.ui.comparison import psnr

#: The reference, what the device prefers, and what is measured; in the order of the rows of a table of pictures.
PRECISIONS = ("f32", "auto", "int8")
SIDE = 256
#: Of a picture in the table of pictures.
SHOWN_SIDE = 128
#: What the classifier sees is drawn by this one.
JUDGED_SAMPLER = "DPM++ 2M"
EQUAL_DB = 99.0


@dataclasses.dataclass(frozen=True)
class Task:
    """One picture to draw, and its side in pixels as it is kept."""

    precision: str
    sampler: str
    prompt: str
    seed: int
    steps: int
    kept: int = SIDE


def main() -> None:
    """Draw, compare, judge, and write the results; with ``--child`` draw the tasks of one process."""
    options = parse()
    change_what_is_left_out(options.also, options.everywhere)
    if options.child is not None:
        child(options.work, options.child)
        return
    options.pictures.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        own = devices.resolved_precision(Settings())
        results: dict[str, Any] = {"own": own, "int8": calibrate(folder, options.steps)["text"]}
        if options.seeds:
            results["likeness_db"] = likeness(options, Path(folder))
        if options.judged:
            results["classifier"] = classified(options, Path(folder))
    show(results, options, lambda results, _: write_line(table(results)), "judged" if options.judged else "")


def parse() -> argparse.Namespace:
    """Parse the command line."""
    parser = parser_of(__doc__, "one picture of two steps by each sampler")
    parser.add_argument("--processes", type=int, default=1, help="that draw at the same time, each on its own cores")
    parser.add_argument("--pictures", type=Path, default=Path("int8-quality"), help="folder of the pictures")
    parser.add_argument("--samplers", nargs="+", default=list(SAMPLERS), choices=list(SAMPLERS))
    parser.add_argument("--seeds", type=int, default=len(PROMPTS), help="pictures by each sampler; 0 leaves these out")
    parser.add_argument("--steps", type=int, default=20, help="of each picture")
    parser.add_argument("--judged", type=int, default=0, help="pictures that the classifier sees")
    parser.add_argument("--judged-steps", type=int, default=20, help="of each of these")
    kinds = list(layers_in_8_bits.LEFT_OUT_INPUTS)
    parser.add_argument("--also", nargs="+", default=[], choices=kinds, help="layers in 8 bits as well, by what they read")
    kinds = sorted(layers_in_8_bits.ONLY_AT_FINEST)
    parser.add_argument("--everywhere", nargs="+", default=[], choices=kinds, help="left out everywhere, by what they read")
    parser.add_argument("--child", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.tiny:
        options.seeds, options.steps = 1, 8
    return options


def calibrate(folder: str, steps: int) -> dict[str, Any]:
    """Make the recipe by one picture, and begin a second; returns what int8 says of itself."""
    suggestions = suggestions_for("fluent-sd")
    pipe = demo_pipeline()
    with accelerate(pipe, _settings("int8", folder)) as accelerated:
        for each in (steps, 1):
            draw(pipe, Task("int8", JUDGED_SAMPLER, suggestions.prompts[-1], 999, each))
        stated: dict[str, Any] = accelerated.stats()["unet"]["int8"]
    assert stated["state"] == "on", stated
    return stated


def likeness(options: argparse.Namespace, work: Path) -> dict[str, Any]:
    """PSNR in dB against f32 by precision and sampler, in the order of the seeds; writes the pictures."""
    cases = [(sampler, seed) for sampler in options.samplers for seed in range(options.seeds)]
    tasks = [Task(p, sampler, PROMPTS[seed % len(PROMPTS)], seed, options.steps) for p in PRECISIONS for sampler, seed in cases]
    drawn = dict(zip(((task.precision, task.sampler, task.seed) for task in tasks), draw_all(tasks, options, work)))
    rows = [[drawn[p, sampler, seed] for seed in range(options.seeds)] for sampler in options.samplers for p in PRECISIONS]
    _grid(rows, SHOWN_SIDE).save(options.pictures / "pictures.png")
    result: dict[str, dict[str, list[float]]] = {}
    for precision in PRECISIONS[1:]:
        values = defaultdict(list)
        for sampler, seed in cases:
            ratio = psnr(*(Image.fromarray(drawn[p, sampler, seed]) for p in (precision, "f32")))
            values[sampler].append(round(min(ratio, EQUAL_DB), 2))
        result[precision] = dict(values)
    for sampler in options.samplers:
        worst = int(np.argmin(result["int8"][sampler]))
        _grid([[drawn[p, sampler, worst] for p in PRECISIONS]], SIDE).save(options.pictures / f"worst-{sampler}.png")
    return result


def classified(options: argparse.Namespace, work: Path) -> dict[str, Any]:
    """The accuracy of a classifier on pictures of the own precision and of int8."""

    def tasks_of(precision: str, cases: Sequence[tuple[str, int]], seed: int) -> list[Task]:
        return [
            Task(precision, JUDGED_SAMPLER, prompt, seed + i, options.judged_steps, JUDGED_SIZE)
            for i, (prompt, _) in enumerate(cases)
        ]

    seen, held_out = (combinations(options.judged, part) for part in ("seen", "held out"))
    drawn = draw_all(
        [*tasks_of("f32", seen, 10_000), *tasks_of("auto", held_out, 20_000), *tasks_of("int8", held_out, 20_000)], options, work
    )
    start = time.perf_counter()
    pictures = np.stack(drawn)
    things = [[thing for _, thing in cases] for cases in (seen, held_out)]
    network = trained(pictures[: len(seen)], things[0])
    own, int8 = np.split(pictures[len(seen) :], 2)
    return {**compare(network, own, int8, things[1]), "training_s": time.perf_counter() - start}


def draw_all(tasks: Sequence[Task], options: argparse.Namespace, work: Path) -> list[np.ndarray]:
    """The pictures of all tasks, in their order, drawn by several processes."""
    count = min(options.processes, len(tasks))
    cores = sorted(os.sched_getaffinity(0))
    share = max(1, len(cores) // count)
    command = [sys.executable, "-m", "benchmarks.bench_int8_quality", "--work", str(work)]
    for name in ("also", "everywhere"):
        command += [f"--{name}", *getattr(options, name)] if getattr(options, name) else []
    started = []
    for i in range(count):
        (work / f"{i}.tasks").write_bytes(pickle.dumps(tasks[i::count]))
        own = [cores[(i * share + j) % len(cores)] for j in range(share)]
        os.sched_setaffinity(0, own)  # the child inherits it, before it starts any thread
        environment = {**os.environ, "OMP_NUM_THREADS": str(share)}
        started.append(subprocess.Popen([*command, "--child", str(i)], env=environment))
        os.sched_setaffinity(0, cores)
    assert not [process.args for process in started if process.wait()], "a process failed"
    parts = [pickle.loads((work / f"{i}.pictures").read_bytes()) for i in range(count)]
    return [parts[i % count][i // count] for i in range(len(tasks))]


def child(work: Path, number: int) -> None:
    """Draw the tasks of one process."""
    tasks: list[Task] = pickle.loads((work / f"{number}.tasks").read_bytes())
    pipe, drawn = demo_pipeline(), {}
    for precision in dict.fromkeys(task.precision for task in tasks):
        with accelerate(pipe, _settings(precision, str(work))) as accelerated:
            drawn.update({task: draw(pipe, task) for task in tasks if task.precision == precision})
            stats = accelerated.stats()["unet"]
        assert precision != "int8" or stats["int8"]["state"] == "on", stats["int8"]
    (work / f"{number}.pictures").write_bytes(pickle.dumps([drawn[task] for task in tasks]))


def draw(pipe: Any, task: Task) -> np.ndarray:
    """The picture of a task, [side, side, 3] uint8."""
    guidance = suggestions_for("fluent-sd").guidance
    drawn = draw_picture(pipe, Picture(task.prompt, task.seed, task.sampler, task.steps, guidance, SIDE))
    if task.kept == SIDE:
        return drawn
    return np.asarray(Image.fromarray(drawn).resize((task.kept, task.kept), Image.Resampling.BOX))


def _settings(precision: str, folder: str) -> Settings:
    return Settings(cache_dir=folder, fallback="raise", precision=precision)


def _grid(rows: Sequence[Sequence[np.ndarray]], side: int) -> Image.Image:
    grid = Image.new("RGB", (side * len(rows[0]), side * len(rows)))
    for y, row in enumerate(rows):
        for x, picture in enumerate(row):
            grid.paste(Image.fromarray(picture).resize((side, side), Image.Resampling.LANCZOS), (side * x, side * y))
    return grid


def table(results: dict[str, Any]) -> str:
    """The figures as text."""
    lines = [results["int8"]]
    if "likeness_db" in results:
        lines += ["", f"{'PSNR, median (worst)':24}{results['own']:>16}{'int8':>16}"]
        columns = [results["likeness_db"][precision] for precision in PRECISIONS[1:]]
        named = {sampler: [column[sampler] for column in columns] for sampler in columns[0]}
        named["all"] = [[*itertools.chain(*column.values())] for column in columns]
        lines += [f"{name:24}" + "".join(f"{_summary(values):>16}" for values in row) for name, row in named.items()]
    if "classifier" in results:
        lines += ["", f"classifier: {json.dumps(results['classifier'])}"]
    return "\n".join(lines)


def _summary(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.1f} ({min(values):.1f})"


if __name__ == "__main__":
    main()
