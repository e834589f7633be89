"""Run the proofs at length: ``python -m tests.soundness [--mutations N] [--graphs N] [--networks N] [--seed S] ...``."""

from __future__ import annotations

import argparse
import itertools
import random
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import hypothesis
import torch
from hypothesis import HealthCheck, Phase

from ov_backend.core.errors import ConversionError
from tests.soundness import layers, positions
from tests.soundness.graphs import Program, programs
from tests.soundness.harness import Result, table
from tests.soundness.modules import names as available
from tests.soundness.processes import both, share
from tests.soundness.twins import as_if_installed, beside_a_twin
from tests.soundness.verdicts import Verdict, judge


def say(text: str) -> None:
    """Write a line at once, for a run of an hour is read while it goes on."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def report(name: str, count: int, seed: str) -> tuple[Result, Result]:
    """Mutate one module in two processes, and say what was wrong."""
    start = time.monotonic()
    try:
        here, there = both(name, count, seed)
    except Exception as error:  # a module that cannot be mutated must not end the run; it counts as lost
        say(traceback.format_exc())
        here, there = Result(name, lost=[f"{type(error).__name__}: {error}"]), Result(name)
    for result in (here, there):
        for outcome in result.stale:
            say(f"STALE {name}: {outcome.name} [{outcome.kind}]: {outcome.stale}")
        for lost in result.lost:
            say(f"lost {name}: {lost}")
    say(f"{name}: {len(here.outcomes)} mutations in {time.monotonic() - start:.0f} s")
    return here, there


def twins(name: str, count: int, seed: str) -> Result:
    """Change one module that has an equal one beside it, and say what was wrong."""
    try:
        with as_if_installed(), tempfile.TemporaryDirectory() as folder:
            result = beside_a_twin(name, count, seed, folder)
    except Exception as error:  # as above
        say(traceback.format_exc())
        result = Result(name, lost=[f"{type(error).__name__}: {error}"])
    for outcome in result.stale:
        say(f"STALE {name}: {outcome.name} [{outcome.kind}]: {outcome.stale}")
    for lost in result.lost:
        say(f"lost {name}: {lost}")
    answered = sum(1 for outcome in result.outcomes[1:] if outcome.calls and not outcome.compiled)
    say(f"{name}, twins: {len(result.outcomes[1:])} mutations, {answered} answered by the other's trace")
    return result


def graphs(count: int, seed: str, precision: str) -> tuple[Counter[str], list[Verdict]]:
    """Draw and judge this many random graphs: how many were right, wrong, in PyTorch or refused, and the wrong ones."""
    counts, wrong = Counter[str](), list[Verdict]()

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=count, database=None, deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck)
    )
    @hypothesis.given(programs())
    def draw(program: Program) -> None:
        if not program.outputs:
            return
        verdict = judge(program, precision)
        counts[verdict.status] += 1
        if verdict.status == "wrong":
            wrong.append(verdict)
            say(f"WRONG {verdict.where}: {verdict.message}\n{verdict.program}\n")
        elif verdict.status == "failed":
            say(f"failed {' '.join(verdict.message.split())[-200:]}\n{verdict.program}\n")

    draw()
    return counts, wrong


def networks(count: int, seed: str, judge_one: Callable[[int], str | None]) -> list[str]:
    """Draw and judge this many random networks: the wrong ones."""
    first = random.Random(seed).randrange(10**6)
    wrong = []
    for number in range(first, first + count):
        try:
            message = judge_one(number)
        except ConversionError as error:  # PyTorch would answer
            say(f"failed seed {number}: {error}")
            continue
        except Exception as error:  # an error of a single network must not end the run; it counts as wrong
            message = f"seed {number} raised {type(error).__name__}: {error}"
        if message:
            wrong.append(message)
            say(f"WRONG {message}\n")
    return wrong


def main() -> int:
    """Run all proofs; 1 if anything was wrong."""
    description = "Mutations, random graphs and random networks, at length."
    parser = argparse.ArgumentParser(prog="python -m tests.soundness", description=description)
    parser.add_argument("--mutations", type=int, default=3400, help="of all modules together")
    parser.add_argument("--twins", type=int, default=700, help="of all modules, beside equal ones that were traced")
    parser.add_argument("--graphs", type=int, default=5200)
    parser.add_argument("--networks", type=int, default=2000, help="random networks of layers")
    parser.add_argument("--positions", type=int, default=500, help="networks of positions, in precision auto, of each form")
    parser.add_argument("--precision", choices=["f32", "auto"], default="f32", help="of random graphs")
    parser.add_argument("--seed", default=str(random.SystemRandom().randrange(10**6)))
    parser.add_argument("--only", nargs="*", default=None, help="modules whose names contain one of these")
    parser.add_argument("--jobs", type=int, default=1, help="modules that are mutated at the same time")
    options = parser.parse_args()
    torch.set_num_threads(1)
    say(f"seed {options.seed}")
    counts, wrong = graphs(options.graphs, options.seed, options.precision) if options.graphs else (Counter(), [])
    say("random graphs: " + ", ".join(f"{count} {status}" for status, count in counts.most_common()))
    wrong_networks = networks(options.networks, options.seed, layers.judge)
    say(f"random networks of layers: {options.networks - len(wrong_networks)} right, {len(wrong_networks)} wrong")
    wrong_positions = []
    for form in positions.FORMS:
        found = networks(options.positions, options.seed, partial(positions.judge, form=form))
        say(f"networks of positions and offsets, {form}: {options.positions} drawn, {len(found)} wrong")
        wrong_positions += found
    names = [name for name in available() if options.only is None or any(each in name for each in options.only)]
    with ThreadPoolExecutor(options.jobs) as pool:
        mutated = names if options.mutations else []
        results = list(pool.map(lambda name: report(name, share(name, options.mutations), options.seed), mutated))
    say(table(results))
    beside = [twins(name, share(name, options.twins), options.seed) for name in names] if options.twins else []
    stale = any(each.stale or each.lost for each in (*itertools.chain(*results), *beside))
    return int(bool(wrong or wrong_networks or wrong_positions) or stale)


if __name__ == "__main__":
    sys.exit(main())
