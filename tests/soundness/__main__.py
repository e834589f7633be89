"""Run the proofs at length: ``python -m tests.soundness [--mutations N] [--graphs N] [--seed S] [--only NAME ...] [--jobs N]``."""

from __future__ import annotations

import argparse
import math
import random
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor

from tests.helpers.alone import alone
from tests.soundness.harness import Result, sampled, table, through_disk
from tests.soundness.modules import build, names as available
from tests.soundness.nasty import NASTY
from tests.soundness.real import REAL


def run_first(name: str, count: int, seed: str, folder: str) -> Result:
    """The mutations of one module, in this process."""
    return sampled(build(name), name, count, seed, folder)


def run_second(name: str, names: list[str], folder: str) -> Result:
    """The same mutations, each before the first call."""
    return through_disk(build(name), name, names, folder)


def share(name: str, total: int) -> int:
    """How many of all mutations are of one module: three fifths go to the small ones, where each takes a moment."""
    group = NASTY if name in NASTY else REAL
    return math.ceil(total * (0.6 if group is NASTY else 0.4) / len(group))


def both(name: str, count: int, seed: str) -> tuple[Result, Result]:
    """One module in two processes, one after the other, that share a store."""
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        here = alone(run_first, name, count, seed, folder)
        there = alone(run_second, name, [outcome.name for outcome in here.outcomes], folder)
    for result in (here, there):
        for outcome in result.stale:
            print(f"STALE {name}: {outcome.name} [{outcome.kind}]: {outcome.stale}", flush=True)
        for lost in result.lost:
            print(f"lost {name}: {lost}", flush=True)
    print(f"{name}: {len(here.outcomes)} mutations in {time.monotonic() - start:.0f} s", flush=True)
    return here, there


def main() -> int:
    """Run both proofs; 1 if anything was wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mutations", type=int, default=3400, help="of all modules together")
    parser.add_argument("--graphs", type=int, default=5000)
    parser.add_argument("--seed", default=str(random.SystemRandom().randrange(10**6)))
    parser.add_argument("--only", nargs="*", default=None, help="modules")
    parser.add_argument("--jobs", type=int, default=1)
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    names = [name for name in available() if options.only is None or any(each in name for each in options.only)]
    with ThreadPoolExecutor(options.jobs) as pool:
        results = list(pool.map(lambda name: both(name, share(name, options.mutations), options.seed), names))
    print(table(results))
    return int(any(here.stale or there.stale for here, there in results))


if __name__ == "__main__":
    sys.exit(main())
