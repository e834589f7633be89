"""SD1.5's UNet (one step, batch 2) and VAE decode: PyTorch eager f32 against ov_backend, and the time of the first call.

    python -m benchmarks.bench_unet [--size 512] [--repeats 3] [--precision auto] [--out FOLDER] [--json] [--tiny]

Two processes measure each network: one with an empty graph store (cold), and one with the graph that the first stored (warm).
The two implementations are timed alternately, so that a change of the machine's speed affects both; the ratio is the median
ratio of the pairs.
"""

from __future__ import annotations

import argparse
import logging
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

import ov_backend
from benchmarks.command import parser_of, run_child, show, write_line, write_result
from benchmarks.memory import resident
from benchmarks.networks import NETWORKS, STAGES, TOLERANCE, Case, seconds_of
from ov_backend import Settings


def main() -> None:
    """Run every measurement and print the table."""
    options = parse()
    if options.child:
        write_result(measure(options))
        return
    with tempfile.TemporaryDirectory() as folder:
        results = {name: cold_and_warm(name, options, Path(folder, name)) for name in options.networks}
    show(results, options, report)


def parse() -> argparse.Namespace:
    """Parse the command line."""
    parser = parser_of(__doc__, "a small network")
    parser.add_argument("--size", type=int, default=512, help="pixels of the square picture")
    parser.add_argument("--repeats", type=int, default=3, help="pairs of timed calls")
    parser.add_argument("--precision", default="auto", choices=list(TOLERANCE))
    parser.add_argument("--networks", nargs="+", default=list(NETWORKS), choices=list(NETWORKS))
    parser.add_argument("--child", choices=["cold", "warm"], help=argparse.SUPPRESS)
    parser.add_argument("--store", help=argparse.SUPPRESS)
    return parser.parse_args()


def cold_and_warm(name: str, options: argparse.Namespace, store: Path) -> dict[str, Any]:
    """The figures of one network from a cold and a warm process, and the size of the store."""
    results = {}
    for child in ("cold", "warm"):
        arguments = ["--child", child, "--store", store, "--networks", name, "--size", options.size]
        arguments += ["--precision", options.precision, "--repeats", options.repeats]
        results[child] = run_child("benchmarks.bench_unet", options, *arguments)
    results["disk_mib"] = sum(file.stat().st_size for file in store.iterdir()) / 2**20
    return results


@torch.no_grad()
def measure(options: argparse.Namespace) -> dict[str, Any]:
    """In a child process: the stages of the first call; in the cold one also the time of both implementations."""
    logging.basicConfig(level=logging.WARNING)
    name = options.networks[0]
    case = NETWORKS[name](options.size, options.tiny)
    rss = {"weights": resident()}
    expected = case() if options.child == "cold" else None
    rss["after eager"] = resident()
    settings = Settings(precision=options.precision, cache_dir=options.store, fallback="raise")
    accelerated = ov_backend.accelerate({name: case.module}, settings)
    start = time.perf_counter()
    actual = case()
    first = time.perf_counter() - start
    rss["compiled"] = resident()
    stats = accelerated.stats()[name]
    result: dict[str, Any] = {"first_call_s": first, "captures_count": stats["captures"], "resident_mib": rss}
    result["stages_s"] = {stage: stats["seconds"].get(stage, 0.0) for stage in STAGES}
    if expected is not None:
        result["relative_error"] = error = float((actual - expected).norm() / expected.norm())
        assert error < TOLERANCE[options.precision], f"relative error {error}"
        result.update(steps(case, accelerated, options.repeats))
    return result


def steps(case: Case, accelerated: Any, repeats: int) -> dict[str, Any]:
    """Seconds of a call of each implementation, timed alternately."""
    forward = accelerated.engine.networks[next(iter(accelerated.engine.networks))].forward
    pairs = []
    for _ in range(repeats):
        ours = seconds_of(case)
        eager = seconds_of(lambda: forward(*case.args, **case.kwargs))
        pairs.append((eager, ours))
    return {
        "eager_s": min(pair[0] for pair in pairs),
        "ours_s": min(pair[1] for pair in pairs),
        "speed_ratio": statistics.median(eager / ours for eager, ours in pairs),
        "pairs_s": pairs,
    }


def report(results: dict[str, Any], options: argparse.Namespace) -> None:
    """Print the figures as a table."""
    cpu = torch.get_num_threads()
    write_line(f"{options.size}x{options.size}, precision {options.precision}, torch {torch.__version__}, {cpu} threads")
    for name, result in results.items():
        cold, warm = result["cold"], result["warm"]
        write_line(f"\n{name}")
        write_line(f"  PyTorch eager f32   {cold['eager_s']:8.3f} s")
        write_line(f"  ov_backend          {cold['ours_s']:8.3f} s   {cold['speed_ratio']:.2f} times as fast (median of pairs)")
        write_line(f"  relative error      {cold['relative_error']:8.1e}")
        for label, child in (("cold", cold), ("warm", warm)):
            stages = ", ".join(f"{stage} {child['stages_s'][stage]:.2f}" for stage in STAGES)
            write_line(f"  first call, {label}    {child['first_call_s']:8.2f} s   captures {child['captures_count']} ({stages})")
        write_line(f"  graph on disk       {result['disk_mib']:8.2f} MiB")
        write_line(f"  RSS                 {cold['resident_mib']} MiB; in a second process {warm['resident_mib']} MiB")


if __name__ == "__main__":
    main()
