"""The mutations of one module in two processes that share a store."""

from __future__ import annotations

import math
import tempfile

from tests.helpers.alone import alone
from tests.soundness.harness import Result, sampled, through_disk
from tests.soundness.modules import NASTY, REAL, build


def run_first(name: str, count: int, seed: str, folder: str) -> Result:
    """The mutations of one module, in this process."""
    return sampled(build(name), name, count, seed, folder)


def run_second(name: str, names: list[str], folder: str) -> Result:
    """The same mutations, each before the first call."""
    return through_disk(build(name), name, names, folder)


def run_second_of_all(wanted: dict[str, list[str]], folder: str) -> dict[str, Result]:
    """The same for several modules, each with a store of its own in the folder."""
    return {name: run_second(name, names, f"{folder}/{name}") for name, names in wanted.items()}


def share(name: str, total: int) -> int:
    """How many of all mutations are of one module: three fifths go to the small ones, where each takes a moment."""
    group = NASTY if name in NASTY else REAL
    return math.ceil(total * (0.6 if group is NASTY else 0.4) / len(group))


def both(name: str, count: int, seed: str) -> tuple[Result, Result]:
    """One module in two processes, one after the other, that share a store."""
    with tempfile.TemporaryDirectory() as folder:
        here = alone(run_first, name, count, seed, folder)
        there = alone(run_second, name, [outcome.name for outcome in here.outcomes], folder)
    return here, there
