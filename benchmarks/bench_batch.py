"""What a batch costs beside its pictures: reading and checking rows, ordering them, writing and recording pictures, going on.

    python -m benchmarks.bench_batch [--rows 100000] [--json]

A stand-in makes the pictures, of 64x64 pixels in one colour, so that nothing but the batch itself is measured: a shuffled job of
two checkpoints, four mixes of LoRAs and three sizes. The result is checked: every row has its picture and its line in the
manifest, and the order changes checkpoints, LoRAs and sizes as rarely as it can. Memory is the resident size of the process.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import torch
from PIL import Image
from safetensors.torch import save_file

from ov_backend.batch.api import Batch, Options
from ov_backend.batch.journal import read_records
from ov_backend.batch.make import Painted
from ov_backend.batch.row import Row
from ov_backend.checkpoint.random_weights import write_random_checkpoint

_IMAGE = Image.new("RGB", (64, 64), (9, 99, 199))


def main() -> None:
    """Measure and print the figures."""
    options = parse()
    with tempfile.TemporaryDirectory() as folder:
        result = measure(options.rows, Path(folder))
    sys.stdout.write(json.dumps(result, indent=1) + "\n" if options.json else table(result))


def parse() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--tiny", action="store_true", help="300 rows, to test the benchmark")
    options, _ = parser.parse_known_args()
    options.rows = 300 if options.tiny else options.rows
    return options


def table(result: dict[str, Any]) -> str:
    """The figures as text."""
    return (
        f"{result['rows']} rows, {result['groups']} groups\n"
        f"read and check     {result['read_ms']:.3f} ms a row\n"
        f"order              {result['order_ms']:.3f} ms a row\n"
        f"write and record   {result['run_ms']:.3f} ms a row\n"
        f"go on, all there   {result['resume_ms']:.3f} ms a row\n"
        f"memory             {result['before_mb']:.0f} MiB before, {result['read_mb']:.0f} with the rows,"
        f" {result['tenth_mb']:.0f} after a tenth of the run, {result['end_mb']:.0f} at its end\n"
    )


@dataclass
class StandIn:
    """Makes pictures of one colour, and notes the resident memory after a tenth of the rows and after the last."""

    rows: int
    order: list[int] = field(default_factory=list)
    memory: dict[int, float] = field(default_factory=dict)

    def paint(self, row: Row) -> Painted:
        """Make the picture of a row."""
        self.order.append(row.number)
        if len(self.order) in (max(self.rows // 10, 1), self.rows):
            self.memory[len(self.order)] = resident_mb()
        return Painted([_IMAGE], 0.1, 0.0, "a stand-in")


def resident_mb() -> float:
    """The resident size of this process in MiB."""
    return float(psutil.Process().memory_info().rss) / (1 << 20)


def write_job(rows: int, folder: Path) -> Path:
    """A shuffled job, with what it names beside it."""
    for seed, name in enumerate(("first", "second")):
        write_random_checkpoint(folder / f"{name}.safetensors", seed)
    weights = {"lora_unet_x.lora_down.weight": torch.zeros(1, 1), "lora_unet_x.lora_up.weight": torch.zeros(1, 1)}
    for name in ("a", "b", "c"):
        save_file(weights, folder / f"{name}.safetensors")
    mixes = ("", "<lora:a:1>", "<lora:b:0.5>", "<lora:a:1> <lora:c:0.3>")
    kinds = list(itertools.product(("first", "second"), mixes, ("64x64", "64x128", "128x64")))
    chance = random.Random(0)
    with (folder / "job.jsonl").open("w", encoding="utf-8") as file:
        for i in range(rows):
            model, mix, size = chance.choice(kinds)
            row = {"prompt": f"picture {i} of a lighthouse at dusk {mix}", "seed": i, "Model": model, "Size": size, "Steps": 20}
            file.write(json.dumps(row) + "\n")
    return folder / "job.jsonl"


def measure(rows: int, folder: Path) -> dict[str, Any]:
    """Milliseconds a row of every part, and the memory."""
    job, out = write_job(rows, folder), folder / "out"
    before, start = resident_mb(), time.perf_counter()
    batch = Batch(job, out, Options(precision="f32", contact_sheet=False))
    read, with_rows = time.perf_counter() - start, resident_mb()
    start = time.perf_counter()
    plan = batch.plan()
    order = time.perf_counter() - start
    stand_in, start = StandIn(rows), time.perf_counter()
    result = batch.run(paints=stand_in)
    run, start = time.perf_counter() - start, time.perf_counter()
    again = batch.run(paints=(nothing := StandIn(rows)))
    resume = time.perf_counter() - start
    check(batch, stand_in, rows)
    assert (result.made, result.failed, again.skipped, nothing.order) == (rows, 0, rows, [])
    return {
        "rows": rows, "groups": len(plan.groups), "read_ms": read / rows * 1000, "order_ms": order / rows * 1000,
        "run_ms": run / rows * 1000, "resume_ms": resume / rows * 1000, "before_mb": before, "read_mb": with_rows,
        "tenth_mb": stand_in.memory[max(rows // 10, 1)], "end_mb": stand_in.memory[rows],
    }


def check(batch: Batch, stand_in: StandIn, rows: int) -> None:
    """Every row was made once, has its file and its line, and groups were not torn apart."""
    assert sorted(stand_in.order) == list(range(1, rows + 1))
    records = {record["row"]: record["file"] for record in read_records(batch.folder)}
    assert records == {row.number: row.files[0] for row in batch.job.rows}
    assert all((batch.folder / name).is_file() for name in records.values())
    by_number = {row.number: (row.checkpoint, row.loras, row.shape) for row in batch.job.rows}
    kinds = [by_number[number] for number in stand_in.order]
    for depth in (1, 2, 3):
        prefixes = [kind[:depth] for kind in kinds]
        assert len(list(itertools.groupby(prefixes))) == len(set(prefixes)), "a group was torn apart"


if __name__ == "__main__":
    main()
