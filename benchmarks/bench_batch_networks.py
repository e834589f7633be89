"""Pictures an hour by a batch, and by loops over the same rows in the order of the job, with real networks.

    python -m benchmarks.bench_batch_networks [--networks small|demo|sd15] [--rows 48] [--size 128] [--steps 20]
        [--sampler LCM] [--cfg-scale 7] [--ways batch loop standalone webui] [--out FOLDER]

The job is mixed and shuffled: two checkpoints, four mixes of LoRAs, three sizes. The ways:

- batch: ``ov_backend.batch``.
- loop: the standalone pipeline called row by row, a pipeline for each checkpoint; both stay in memory with what is compiled.
- standalone: the same with one pipeline, which loads a checkpoint where the row before had another, as the standalone page does.
- webui: a loop over the API of a WebUI with this extension (WEBUI_DIR, WEBUI_PYTHON); skipped where there is none.

Each begins with an empty store of graphs. The pictures of the first three are compared; the WebUI draws its noise otherwise.
Preparing is loading checkpoints, adding LoRAs, tracing and compiling; compiles are counted over all networks.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from benchmarks.batch_lists import NETWORKS, write_job
from benchmarks.command import parser_of, show, write_line
from ov_backend.batch.api import Batch, Options
from ov_backend.batch.renderer import PipelineRenderer
from ov_backend.core.settings import Settings

WAYS = ("batch", "loop", "standalone", "webui")


def main() -> None:
    """Measure and print the figures."""
    options = parse()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        result = measure(options, Path(folder))
    show(result, options, lambda result, options: write_line(table(result, options)))


def parse() -> argparse.Namespace:
    """Parse the command line."""
    parser = parser_of(__doc__, "6 rows of one step")
    parser.add_argument("--networks", choices=NETWORKS, default="small", help="of random weights, or the demo checkpoint's")
    parser.add_argument("--checkpoint", type=Path, action="append", default=[], help="twice, in place of --networks")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS)
    parser.add_argument("--rows", type=int, default=48)
    parser.add_argument("--kinds", type=int, default=24, help="of 24 combinations of checkpoint, mix and size, drawn at random")
    parser.add_argument("--size", type=int, default=128, help="pixels of the square; the other sizes are half as wide, or high")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--sampler", default="DPM++ 2M")
    parser.add_argument("--cfg-scale", type=float, default=7.0)
    parser.add_argument("--folder", type=Path, help="of temporary files; default: the system's")
    options, _ = parser.parse_known_args()
    if len(options.checkpoint) not in (0, 2):
        parser.error("give --checkpoint twice, or not at all")
    if options.tiny:
        options.rows, options.steps = 6, 1
    return options


def table(result: dict[str, Any], options: argparse.Namespace) -> str:
    """The figures as text."""
    lines = [f"{options.rows} rows, {options.steps} steps of {options.sampler}, sizes up to {options.size}"]
    for name, each in result["ways"].items():
        share = f"{each['all_s']:.0f} s, {each['prepared_s'] / each['all_s']:.1%} of it preparing, {each['cpu_s']:.0f} s of CPU"
        lines.append(f"{name:10} {each['pictures_per_hour']:8.0f} pictures an hour, {each['compiles_count']:4} compiles, {share}")
    for name, ratio in result["batch_by_ratio"].items():
        lines.append(f"the batch makes {ratio:.2f} times as many as {name}")
    return "\n".join(lines)


class Count:
    """Seconds since it was made, seconds of preparing, and compiles."""

    def __init__(self) -> None:
        self.cpu = time.process_time()
        self.start, self.prepared, self.stages = time.perf_counter(), 0.0, Counter[str]()

    def stage(self, network: str, stage: str, signature: object) -> None:
        """A network is prepared."""
        self.stages[stage] += 1

    def figures(self, rows: int) -> dict[str, float]:
        """The figures of one way, which ends now."""
        cpu = time.process_time() - self.cpu
        return figures(time.perf_counter() - self.start, cpu, rows, self.prepared, self.stages["compile"])


def figures(seconds: float, cpu: float, rows: int, prepared: float, compiles: int) -> dict[str, float]:
    """The figures of one way; its seconds of CPU say more where the machine does other work meanwhile."""
    hourly = rows / seconds * 3600
    return {"all_s": seconds, "cpu_s": cpu, "pictures_per_hour": hourly, "prepared_s": prepared, "compiles_count": compiles}


def measure(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Seconds, pictures an hour and compiles of every way, and how many times as many the batch makes."""
    job = write_job(options, folder)
    known: dict[str, Callable[[Path, Path], dict[str, float]]] = {
        "batch": run_batch, "loop": run_loop, "standalone": run_standalone,
        "webui": partial(run_webui, networks=None if options.checkpoint else options.networks),
    }
    ways = {}
    for name in options.ways:
        if name == "webui" and not os.environ.get("WEBUI_DIR"):
            sys.stderr.write("webui: skipped, WEBUI_DIR and WEBUI_PYTHON name none\n")
            continue
        (folder / name).mkdir()
        ways[name] = known[name](job, folder)
        sys.stderr.write(f"{name}: {ways[name]}\n")
    compare(folder, [name for name in ways if name != "webui"])
    others = [name for name in ways if name != "batch"] if "batch" in ways else []
    ratios = {name: ways[name]["all_s"] / ways["batch"]["all_s"] for name in others}
    return {"ways": ways, "batch_by_ratio": ratios}


def compare(folder: Path, ways: list[str]) -> None:
    """The pictures of these ways are equal."""
    for way in ways[1:]:
        names = sorted(path.name for path in (folder / ways[0]).glob("*.png"))
        assert names == sorted(path.name for path in (folder / way).glob("*.png"))
        for name in names:
            both = [np.asarray(Image.open(folder / each / name), dtype=int) for each in (ways[0], way)]
            assert np.abs(both[0] - both[1]).max() <= 2, f"{name} of {way} differs"


def run_batch(job: Path, folder: Path) -> dict[str, float]:
    """By a batch."""
    count, settings = Count(), Settings(cache_dir=str(folder / "graphs-batch"))

    def report(event: dict[str, Any]) -> None:
        assert event["event"] != "failure", event
        count.prepared += event.get("prepared_seconds", 0.0)

    batch = Batch(job, folder / "batch", Options(contact_sheet=False))
    batch.run(report, renderer := PipelineRenderer(settings, count.stage))
    renderer.close()
    return count.figures(len(batch.job.rows))


def run_loop(job: Path, folder: Path) -> dict[str, float]:
    """Row by row, in the order of the job, with a pipeline for each checkpoint."""
    return row_by_row(job, folder, "loop", lambda checkpoint: checkpoint)


def run_standalone(job: Path, folder: Path) -> dict[str, float]:
    """Row by row, in the order of the job, with one pipeline."""
    return row_by_row(job, folder, "standalone", lambda checkpoint: None)


def row_by_row(job: Path, folder: Path, way: str, pipeline_of: Callable[[Path], Path | None]) -> dict[str, float]:
    """Row by row, in the order of the job; ``pipeline_of`` tells which checkpoints share a pipeline."""
    count, settings = Count(), Settings(cache_dir=str(folder / f"graphs-{way}"))
    rows = Batch(job, folder / way, Options()).job.rows
    renderers = {pipeline_of(row.checkpoint): PipelineRenderer(settings, count.stage) for row in rows}
    for row in rows:
        rendered = renderers[pipeline_of(row.checkpoint)].render(row)
        count.prepared += rendered.prepared_seconds
        rendered.images[0].save(folder / way / row.files[0])
    result = count.figures(len(rows))
    for renderer in renderers.values():
        renderer.close()
    return result


def run_webui(job: Path, folder: Path, networks: str | None) -> dict[str, float]:
    """A request for each row to a WebUI, in the order of the job."""
    from benchmarks.batch_webui import loop

    rows = Batch(job, folder / "webui", Options()).job.rows
    seconds, cpu, prepared, compiles = loop(rows, folder, networks)
    return figures(seconds, cpu, len(rows), prepared, compiles)


if __name__ == "__main__":
    main()
