"""Run the proofs at length: ``python -m tests.soundness [--mutations N] [--graphs N] [--seed S] [--only NAME ...] [--jobs N]``."""

from __future__ import annotations

import argparse
import random
import sys
import time
from concurrent.futures import ThreadPoolExecutor

from tests.soundness.harness import Result, table
from tests.soundness.processes import both, share
from tests.soundness.modules import names as available


def report(name: str, count: int, seed: str) -> tuple[Result, Result]:
    """Mutate one module in two processes, and say what was wrong."""
    start = time.monotonic()
    try:
        here, there = both(name, count, seed)
    except Exception as error:  # a module that cannot be mutated must not end the run; it counts as lost
        here, there = Result(name, lost=[f"{type(error).__name__}: {error}"]), Result(name)
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
        results = list(pool.map(lambda name: report(name, share(name, options.mutations), options.seed), names))
    print(table(results))
    return int(any(here.stale or there.stale for here, there in results))


if __name__ == "__main__":
    sys.exit(main())
