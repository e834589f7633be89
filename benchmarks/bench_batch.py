"""What a batch costs beside its pictures: reading and checking rows, ordering them, writing and recording pictures, going on.

    python -m benchmarks.bench_batch [--rows 100000] [--workers 4] [--out FOLDER] [--json]

A stand-in makes the pictures, of 64x64 pixels in one colour, so that nothing but the batch itself is measured: a shuffled job of
two checkpoints, four mixes of LoRAs and three sizes. With --workers, the stand-ins are processes on Ray. The result is checked:
every row has its picture and its line in the manifest, and in one process the order changes checkpoints, LoRAs and sizes as
rarely as it can. What it takes to encode a picture, and to write its file and flush it to the disk, is timed apart: the rest is
scheduling. Memory is the resident size of the process that runs the batch.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import random
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from PIL import Image

from benchmarks.batch_lists import LORAS, write_loras
from benchmarks.command import parser_of, show, write_line
from ov_backend.batch import pictures
from ov_backend.batch.api import Batch, Options
from ov_backend.batch.executor import RenderedRow
from ov_backend.batch.journal import read_records
from ov_backend.batch.plan import groups
from ov_backend.batch.row import Row
from tests.helpers.random_checkpoint import write_random_checkpoint

_IMAGE = Image.new("RGB", (64, 64), (9, 99, 199))


def main() -> None:
    """Measure and print the figures."""
    options = parse()
    with tempfile.TemporaryDirectory() as folder:
        result = measure(options.rows, Path(folder), options.workers)
    show(result, options, lambda result, _: write_line(table(result)))


def parse() -> argparse.Namespace:
    """Parse the command line."""
    parser = parser_of(__doc__, "300 rows")
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--workers", type=int, help="processes on Ray; default: this process")
    options, _ = parser.parse_known_args()
    options.rows = 300 if options.tiny else options.rows
    return options


def table(result: dict[str, Any]) -> str:
    """The figures as text."""
    return (
        f"{result['rows_count']} rows, {result['groups_count']} groups\n"
        f"read and check     {result['read_ms']:.3f} ms a row\n"
        f"order              {result['order_ms']:.3f} ms a row\n"
        f"run                {result['run_ms']:.3f} ms a row: {result['encode_ms']:.3f} encode the picture,"
        f" {result['write_ms']:.3f} write and flush its file, {result['schedule_ms']:.3f} schedule\n"
        f"go on, all there   {result['resume_ms']:.3f} ms a row\n"
        f"memory             {result['before_mib']:.0f} MiB before, {result['read_mib']:.0f} with the rows,"
        f" {result['tenth_mib']:.0f} after a tenth of the run, {result['end_mib']:.0f} at its end,"
        f" {result['written_mib']:.0f} with manifest.parquet"
    )


class StandIn:
    """Makes pictures of one colour."""

    def render(self, row: Row) -> RenderedRow:
        """Make the picture of a row."""
        return RenderedRow([_IMAGE], 0.1, 0.0, "no network")


@dataclass
class Watch:
    """Notes the rows in the order in which they are recorded, and the memory after a tenth of them and after the last."""

    rows: int
    order: list[int] = field(default_factory=list)
    memory: dict[int, float] = field(default_factory=dict)

    def report(self, event: dict[str, Any]) -> None:
        """Take an event of the batch."""
        if event["event"] == "picture":
            self.order.append(event["row"])
            if len(self.order) in (max(self.rows // 10, 1), self.rows):
                self.memory[len(self.order)] = resident_mb()


@contextmanager
def timed() -> Iterator[dict[str, float]]:
    """The seconds that encoding and writing pictures take in this process."""
    functions = {name: getattr(pictures, name) for name in ("encode", "write")}
    seconds = dict.fromkeys(functions, 0.0)

    def timing(name: str, function: Callable[..., Any], *arguments: Any) -> Any:
        start = time.perf_counter()
        try:
            return function(*arguments)
        finally:
            seconds[name] += time.perf_counter() - start

    for name, function in functions.items():
        setattr(pictures, name, functools.partial(timing, name, function))
    try:
        yield seconds
    finally:
        for name, function in functions.items():
            setattr(pictures, name, function)


def resident_mb() -> float:
    """The resident size of this process in MiB."""
    return float(psutil.Process().memory_info().rss) / (1 << 20)


def write_job(rows: int, folder: Path) -> Path:
    """A shuffled job, with what it names beside it."""
    for seed, name in enumerate(("first", "second")):
        write_random_checkpoint(folder / f"{name}.safetensors", seed)
    write_loras(folder / "first.safetensors", folder / "lora")
    a, b, c = LORAS
    mixes = ("", f"<lora:{a}:1>", f"<lora:{b}:0.5>", f"<lora:{a}:1> <lora:{c}:0.3>")
    kinds = list(itertools.product(("first", "second"), mixes, ("64x64", "64x128", "128x64")))
    chance = random.Random(0)
    with (folder / "job.jsonl").open("w", encoding="utf-8") as file:
        for i in range(rows):
            model, mix, size = chance.choice(kinds)
            row = {"prompt": f"picture {i} of a lighthouse at dusk {mix}", "seed": i, "Model": model, "Size": size, "Steps": 20}
            file.write(json.dumps(row) + "\n")
    return folder / "job.jsonl"


def measure(rows: int, folder: Path, workers: int | None = None) -> dict[str, Any]:
    """Milliseconds a row of every part, and the memory."""
    job, out = write_job(rows, folder), folder / "out"
    before, start = resident_mb(), time.perf_counter()
    batch = Batch(job, out, Options(precision="f32", contact_sheet=False, workers=workers))
    read, with_rows = time.perf_counter() - start, resident_mb()
    start = time.perf_counter()
    plan = batch.plan()
    order = time.perf_counter() - start
    watch, start = Watch(rows), time.perf_counter()
    with timed() as parts:
        result = batch.run(watch.report, StandIn())
    run, written, start = time.perf_counter() - start, resident_mb(), time.perf_counter()
    again = batch.run((nothing := Watch(rows)).report, StandIn())
    resume = time.perf_counter() - start
    check(batch, watch.order, rows, in_order=workers is None)
    assert (result.made, result.failed, again.skipped, nothing.order) == (rows, 0, rows, [])
    seconds = {"read": read, "order": order, "run": run, **parts, "resume": resume}
    seconds["schedule"] = run - parts["encode"] - parts["write"]
    return {
        "rows_count": rows, "groups_count": len(groups(plan.pending)),
        **{f"{name}_ms": each / rows * 1000 for name, each in seconds.items()},
        "before_mib": before, "read_mib": with_rows, "tenth_mib": watch.memory[max(rows // 10, 1)], "end_mib": watch.memory[rows],
        "written_mib": written,
    }


def check(batch: Batch, order: list[int], rows: int, in_order: bool) -> None:
    """Every row was made once and has its file and its line; groups were not torn apart."""
    assert sorted(order) == list(range(1, rows + 1))
    lines = [(record["row"], record["file"]) for record in read_records(batch.folder)]
    assert sorted(lines) == sorted((row.number, row.files[0]) for row in batch.job.rows)
    assert all((batch.folder / name).is_file() for _, name in lines)
    by_number = {row.number: (row.checkpoint, row.loras, row.shape) for row in batch.job.rows}
    kinds = [by_number[number] for number in order]
    for depth in (1, 2, 3) if in_order else ():
        prefixes = [kind[:depth] for kind in kinds]
        assert len(list(itertools.groupby(prefixes))) == len(set(prefixes)), "a group was torn apart"


if __name__ == "__main__":
    main()
