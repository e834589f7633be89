"""Pictures an hour by a batch, and by a loop over the same rows in the order of the job, with real networks.

    python -m benchmarks.bench_batch_networks [--checkpoint FILE --checkpoint FILE] [--rows 48] [--size 128] [--steps 20] [--json]

The job is mixed and shuffled: two checkpoints, four mixes of LoRAs, three sizes. The loop has a pipeline for each checkpoint, and
both stay in memory with what is compiled for them; it adds the LoRAs of each row. Both begin with an empty store of graphs. The
pictures of both are compared, and compiles are counted over all networks.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from safetensors.torch import save_file

from ov_backend.batch.api import Batch, Options
from ov_backend.batch.painter import Painter
from ov_backend.checkpoint import load_pipeline
from ov_backend.checkpoint.random_weights import write_random_checkpoint
from ov_backend.settings import Settings

_RANK = 4


def main() -> None:
    """Measure and print the figures."""
    options = parse()
    with tempfile.TemporaryDirectory() as folder:
        result = measure(options, Path(folder))
    sys.stdout.write(json.dumps(result, indent=1) + "\n" if options.json else table(result, options))


def parse() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", type=Path, action="append", default=[], help="twice; default: two small random ones")
    parser.add_argument("--rows", type=int, default=48)
    parser.add_argument("--size", type=int, default=128, help="pixels of the square; the other sizes are half as wide, or high")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--tiny", action="store_true", help="6 rows of one step, to test the benchmark")
    options, _ = parser.parse_known_args()
    if options.tiny:
        options.rows, options.steps = 6, 1
    return options


def table(result: dict[str, Any], options: argparse.Namespace) -> str:
    """The figures as text."""
    lines = [f"{options.rows} rows, {options.steps} steps, sizes around {options.size}x{options.size}"]
    for name in ("batch", "loop"):
        each = result[name]
        share = f"{each['seconds']:.0f} s, {each['prepared'] / each['seconds']:.0%} of it prepared networks"
        lines.append(f"{name:6} {each['an_hour']:8.0f} pictures an hour, {each['compiles']} compiles, {share}")
    return "\n".join([*lines, f"the batch makes {result['ratio']:.2f} times as many", ""])


def write_loras(checkpoint: Path, folder: Path) -> None:
    """Three LoRAs of random weights for the UNet's attention."""
    unet = load_pipeline(checkpoint).unet
    layers = [(name, module.weight.shape) for name, module in unet.named_modules() if name.endswith(("to_q", "to_k", "to_v"))]
    for seed, lora in enumerate(("a", "b", "c")):
        generator, tensors = torch.Generator().manual_seed(seed), {}
        for name, (outputs, inputs) in layers:
            key = "lora_unet_" + name.replace(".", "_")
            tensors[f"{key}.lora_down.weight"] = torch.randn(_RANK, inputs, generator=generator) / inputs**0.5
            tensors[f"{key}.lora_up.weight"] = torch.randn(outputs, _RANK, generator=generator) * 0.05
        save_file(tensors, folder / f"{lora}.safetensors")


def write_job(options: argparse.Namespace, folder: Path) -> Path:
    """The mixed list, with what it names beside it."""
    checkpoints = options.checkpoint or [write_random_checkpoint(folder / f"{seed}.safetensors", seed) for seed in (0, 1)]
    assert len(checkpoints) == 2, "give --checkpoint twice, or not at all"
    write_loras(checkpoints[0], folder)
    mixes, half = ("", "<lora:a:1>", "<lora:b:0.5>", "<lora:a:0.7> <lora:c:0.3>"), options.size // 2
    sizes = (f"{options.size}x{options.size}", f"{half}x{options.size}", f"{options.size}x{half}")
    kinds = list(itertools.product(checkpoints, mixes, sizes))
    rows = [kinds[i % len(kinds)] for i in range(options.rows)]
    random.Random(0).shuffle(rows)
    with (folder / "job.jsonl").open("w", encoding="utf-8") as file:
        for seed, (checkpoint, mix, size) in enumerate(rows):
            prompt = f"a lighthouse {mix}"
            row = {"prompt": prompt, "seed": seed, "checkpoint": str(checkpoint.resolve()), "size": size, "steps": options.steps}
            file.write(json.dumps(row) + "\n")
    return folder / "job.jsonl"


def measure(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Seconds, pictures an hour and compiles of both, and their ratio."""
    job = write_job(options, folder)
    by_batch, in_loop = run_batch(job, folder), run_loop(job, folder)
    for name in sorted(path.name for path in (folder / "out").glob("*.png")):
        both = [np.asarray(Image.open(folder / each / name), dtype=int) for each in ("out", "loop")]
        assert np.abs(both[0] - both[1]).max() <= 2, f"{name} differs"
    return {"batch": by_batch, "loop": in_loop, "ratio": in_loop["seconds"] / by_batch["seconds"]}


def figures(start: float, rows: int, prepared: float, stages: Counter[str]) -> dict[str, float]:
    """The figures of one way, which ends now."""
    seconds = time.perf_counter() - start
    return {"seconds": seconds, "an_hour": rows / seconds * 3600, "prepared": prepared, "compiles": stages["compile"]}


def run_batch(job: Path, folder: Path) -> dict[str, float]:
    """By a batch."""
    stages: Counter[str] = Counter()
    settings = Settings(cache_dir=str(folder / "graphs-batch"))
    prepared = 0.0

    def report(event: dict[str, Any]) -> None:
        nonlocal prepared
        assert event["event"] != "failure", event
        prepared += event.get("prepared_seconds", 0.0)

    start = time.perf_counter()
    batch = Batch(job, folder / "out", Options(contact_sheet=False))
    batch.run(report, Painter(settings, lambda network, stage, signature: stages.update([stage])))
    return figures(start, len(batch.job.rows), prepared, stages)


def run_loop(job: Path, folder: Path) -> dict[str, float]:
    """Row by row, in the order of the job, with a pipeline for each checkpoint."""
    stages: Counter[str] = Counter()
    settings = Settings(cache_dir=str(folder / "graphs-loop"))
    (folder / "loop").mkdir()
    start, prepared = time.perf_counter(), 0.0
    painters: dict[Path, Painter] = {}
    rows = Batch(job, folder / "loop", Options()).job.rows
    for row in rows:
        if row.checkpoint not in painters:
            painters[row.checkpoint] = Painter(settings, lambda network, stage, signature: stages.update([stage]))
        painted = painters[row.checkpoint].paint(row)
        prepared += painted.prepared_seconds
        painted.images[0].save(folder / "loop" / row.files[0])
    result = figures(start, len(rows), prepared, stages)
    for painter in painters.values():
        painter.close()
    return result


if __name__ == "__main__":
    main()
