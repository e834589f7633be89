"""The pictures of the demo checkpoint in f32, in the device's own precision and in int8: how alike, and what a classifier sees.

    python -m benchmarks.bench_int8_quality [--processes 2] [--out FOLDER] [--seeds 8] [--samplers ddim ...] [--judged 1000]

One picture of another prompt calibrates int8. Then every sampler draws the prompts of ``training.fidelity``, 256x256, in all
three precisions. With ``--judged`` a small classifier is trained on pictures in f32, and names the things in others, which the
own precision and int8 draw from the same noise. The processes have cores of their own, and nothing is downloaded. The folder
gets ``quality.json``, and ``pictures.png``: for each sampler f32, the own precision and int8 in rows, the prompts in columns. It
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
import torch
from PIL import Image

from benchmarks.bench_int8 import change_what_is_left_out
from benchmarks.command import write_line
from benchmarks.judge import JUDGED_SIZE, combinations, compare, trained
from ov_backend import Settings, accelerate
from ov_backend.checkpoint import load_pipeline
from ov_backend.core import devices
from ov_backend.core.package_files import TRAINED
from ov_backend.hosts.standalone.demo import SAMPLERS
from ov_backend.hosts.standalone.suggestions import suggestions_for
from ov_backend.model.transformations import weighted_layers
from ov_backend.ui.comparison import psnr
from training.fidelity import PROMPTS

#: The reference, what the device prefers, and what is measured; in the order of the rows of a table of pictures.
PRECISIONS = ("f32", "auto", "int8")
SIDE = 256
#: Of a picture in the table of pictures.
SHOWN_SIDE = 128
#: What the classifier sees is drawn by this one.
JUDGED_SAMPLER = "dpmpp-2m"
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
    options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        results = {"conditions": conditions(options), "int8": calibrate(folder, options.steps)}
        if options.seeds:
            results["likeness"] = likeness(options, Path(folder))
            write(options.out, results)
        if options.judged:
            results["classifier"] = classified(options, Path(folder))
            write(options.out, results)
    write_line(table(results))


def parse() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=1, help="that draw at the same time, each on its own cores")
    parser.add_argument("--out", type=Path, default=Path("int8-quality"), help="folder of the results")
    parser.add_argument("--samplers", nargs="+", default=list(SAMPLERS), choices=list(SAMPLERS))
    parser.add_argument("--seeds", type=int, default=len(PROMPTS), help="pictures by each sampler; 0 leaves these out")
    parser.add_argument("--steps", type=int, default=20, help="of each picture")
    parser.add_argument("--judged", type=int, default=0, help="pictures that the classifier sees")
    parser.add_argument("--judged-steps", type=int, default=20, help="of each of these")
    kinds = list(weighted_layers.LEFT_OUT_INPUTS)
    parser.add_argument("--also", nargs="+", default=[], choices=kinds, help="layers in 8 bits as well, by what they read")
    kinds = sorted(weighted_layers.ONLY_AT_FINEST)
    parser.add_argument("--everywhere", nargs="+", default=[], choices=kinds, help="left out everywhere, by what they read")
    parser.add_argument("--child", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


def conditions(options: argparse.Namespace) -> dict[str, Any]:
    """What the figures depend on."""
    own = devices.resolved_precision(Settings())
    versions = {"torch": torch.__version__, "openvino": devices.openvino_version()}
    asked = {name: getattr(options, name) for name in ("steps", "seeds", "also", "everywhere")}
    return {"own": own, "cores": len(os.sched_getaffinity(0)), **asked, **versions}


def calibrate(folder: str, steps: int) -> dict[str, Any]:
    """Make the recipe by one picture, and begin a second; returns what int8 says of itself."""
    suggestions = suggestions_for("fluent-sd")
    pipe = _pipeline()
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
    _grid(rows, SHOWN_SIDE).save(options.out / "pictures.png")
    result: dict[str, dict[str, list[float]]] = {}
    for precision in PRECISIONS[1:]:
        values = defaultdict(list)
        for sampler, seed in cases:
            ratio = psnr(*(Image.fromarray(drawn[p, sampler, seed]) for p in (precision, "f32")))
            values[sampler].append(round(min(ratio, EQUAL_DB), 2))
        result[precision] = dict(values)
    for sampler in options.samplers:
        worst = int(np.argmin(result["int8"][sampler]))
        _grid([[drawn[p, sampler, worst] for p in PRECISIONS]], SIDE).save(options.out / f"worst-{sampler}.png")
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
    return {**compare(network, own, int8, things[1]), "training_seconds": round(time.perf_counter() - start, 1)}


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
    pipe, drawn = _pipeline(), {}
    for precision in dict.fromkeys(task.precision for task in tasks):
        with accelerate(pipe, _settings(precision, str(work))) as accelerated:
            drawn.update({task: draw(pipe, task) for task in tasks if task.precision == precision})
            stats = accelerated.stats()["unet"]
        assert precision != "int8" or stats["int8"]["state"] == "on", stats["int8"]
    (work / f"{number}.pictures").write_bytes(pickle.dumps([drawn[task] for task in tasks]))


def draw(pipe: Any, task: Task) -> np.ndarray:
    """One picture, [side, side, 3] uint8."""
    import diffusers

    pipe.scheduler = getattr(diffusers, SAMPLERS[task.sampler]).from_config(pipe.scheduler.config)
    with torch.inference_mode():
        (picture,) = pipe(
            prompt=task.prompt,
            width=SIDE,
            height=SIDE,
            num_inference_steps=task.steps,
            guidance_scale=suggestions_for("fluent-sd").guidance,
            generator=torch.Generator("cpu").manual_seed(task.seed),
            output_type="pil",
        ).images
    if task.kept != SIDE:
        picture = picture.resize((task.kept, task.kept), Image.Resampling.BOX)
    return np.asarray(picture)


def _pipeline() -> Any:
    pipe = load_pipeline(TRAINED)
    pipe.set_progress_bar_config(disable=True)
    return pipe


def _settings(precision: str, folder: str) -> Settings:
    return Settings(cache_dir=folder, fallback="raise", precision=precision)


def _grid(rows: Sequence[Sequence[np.ndarray]], side: int) -> Image.Image:
    grid = Image.new("RGB", (side * len(rows[0]), side * len(rows)))
    for y, row in enumerate(rows):
        for x, picture in enumerate(row):
            grid.paste(Image.fromarray(picture).resize((side, side), Image.Resampling.LANCZOS), (side * x, side * y))
    return grid


def write(folder: Path, results: dict[str, Any]) -> None:
    """Write the figures so far."""
    (folder / "quality.json").write_text(json.dumps(results, indent=1) + "\n")


def table(results: dict[str, Any]) -> str:
    """The figures as text."""
    lines = [json.dumps(results["conditions"]), results["int8"]["text"]]
    if "likeness" in results:
        lines += ["", f"{'PSNR, median (worst)':24}{results['conditions']['own']:>16}{'int8':>16}"]
        columns = [results["likeness"][precision] for precision in PRECISIONS[1:]]
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
