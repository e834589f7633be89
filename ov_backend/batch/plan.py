"""What a batch would do, and the order of its rows: it loads checkpoints, adds LoRAs and compiles sizes as rarely as it can."""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

from ov_backend.batch.job import Job
from ov_backend.batch.row import Row, Shape
from ov_backend.standalone.prompts import CHUNK


@dataclass(frozen=True)
class Group:
    """Rows of one checkpoint, precision, mix of LoRAs and shape; the networks are prepared once for all of them."""

    checkpoint: Path
    precision: str
    loras: tuple[tuple[Path, float], ...]
    shape: Shape
    rows: int
    pictures: int
    work: float

    @property
    def label(self) -> str:
        """In words: "model, bf16, 512x768, LoRA style 0.8"."""
        width, height, batch, guided, from_picture, chunks = self.shape
        parts = [self.checkpoint.stem, self.precision, f"{width}x{height}"]
        parts += [f"{batch} at once"] if batch > 1 else []
        parts += [] if guided else ["no guidance"]
        parts += ["from a picture"] if from_picture else []
        parts += [f"prompts of {CHUNK * (chunks - 1) + 1} to {CHUNK * chunks} tokens"] if chunks > 1 else []
        parts += [f"LoRA {path.stem} {strength:g}" for path, strength in self.loras]
        return ", ".join(parts)


def ordered(rows: Iterable[Row]) -> list[Row]:
    """The rows in the order in which they run; what comes first in the job comes first here."""
    first: dict[Hashable, int] = {}

    def rank(*key: Hashable) -> int:
        return first.setdefault(key, len(first))

    def order(row: Row) -> tuple[int, ...]:
        checkpoint = rank(row.checkpoint)
        weights = rank(row.checkpoint, row.loras)
        precision = rank(row.checkpoint, row.loras, row.precision)
        return checkpoint, weights, precision, rank(row.checkpoint, row.loras, row.precision, row.shape), row.number

    return sorted(rows, key=order)


def groups(rows: Iterable[Row]) -> Iterator[Group]:
    """The groups of rows that are in order."""
    for (checkpoint, precision, loras, shape), members in groupby(rows, _kind):
        count, pictures, amount = 0, 0, 0.0
        for row in members:
            count, pictures, amount = count + 1, pictures + row.parameters.batch, amount + work(row)
        yield Group(checkpoint, precision, loras, shape, count, pictures, amount)


def shares(rows: Sequence[Row], workers: int) -> Iterator[Sequence[Row]]:
    """Divide rows that are in order into shares of one kind each; a worker takes one share after the other.

    A group is one share, so that only one worker prepares its networks. If a group is more than half of what each worker has to
    do on average, it is divided into equal shares.
    """
    most = sum(work(row) for row in rows) / workers / 2
    start = 0
    for group in groups(rows):
        parts = max(min(math.ceil(group.work / most) if workers > 1 else 1, workers * 2, group.rows), 1)
        bounds = [start + group.rows * i // parts for i in range(parts + 1)]
        yield from (rows[first:last] for first, last in pairwise(bounds))
        start = bounds[-1]


@dataclass(frozen=True)
class Preparations:
    """How often something is prepared by all processes together: at least, and at most.

    Rows of one kind may be divided among several processes, and each of these prepares for itself.

    Attributes:
        checkpoints: loaded.
        lora_mixes: added to weights.
        compiles: of networks for a group.
    """

    checkpoints: tuple[int, int]
    lora_mixes: tuple[int, int]
    compiles: tuple[int, int]


def preparations(rows: Sequence[Row], workers: int) -> Preparations:
    """What so many processes prepare for rows that are in order."""
    kinds = [_kind(share[0]) for share in shares(rows, workers)]
    mixes = [(checkpoint, loras) if loras else None for checkpoint, _, loras, _ in kinds]
    return Preparations(_times([kind[0] for kind in kinds], workers), _times(mixes, workers), _times(kinds, workers))


def _times(needs: Sequence[Hashable | None], workers: int) -> tuple[int, int]:
    """How often what the shares need is prepared, at least and at most; None is a share that needs nothing.

    Every process begins with a share of its own, and which one takes a later share is not known before. Shares with equal needs
    follow each other, so no process prepares the same thing twice.
    """
    first = [need for need in needs[:workers] if need is not None]
    counts = Counter(need for need in needs if need is not None)
    return len(first) + len(counts.keys() - set(first)), sum(min(count, workers) for count in counts.values())


def in_two_steps(row: Row) -> Row:
    """The same row with two steps, for a measurement."""
    chosen = row.parameters
    steps = 2 if chosen.strength is None else math.ceil(2 / chosen.strength)
    return replace(row, parameters=replace(chosen, steps=steps))


def largest_kind(rows: Sequence[Row]) -> Row:
    """The first row of the group that has the most to compute; the rows are in order."""
    start, most = 0, (-1.0, 0)
    for group in groups(rows):
        most = max(most, (group.work, -start))
        start += group.rows
    return rows[-most[1]]


def _kind(row: Row) -> tuple[Path, str, tuple[tuple[Path, float], ...], Shape]:
    return row.checkpoint, row.precision, row.loras, row.shape


def work(row: Row) -> float:
    """How much there is to compute, for estimates: pixels of all pictures, times steps, twice with guidance."""
    chosen = row.parameters
    steps = chosen.steps * (chosen.strength or 1.0)
    return chosen.width * chosen.height * chosen.batch * steps * (2 if chosen.guidance > 1 else 1)


@dataclass(frozen=True)
class Plan:
    """What a batch would do.

    Attributes:
        job: all rows.
        pending: the rows to run, in their order.
        skipped: number of pictures that are there already.
        groups: of the pending rows, in their order; each needs its networks compiled once.
        replaced: number of pictures that are there and go once those of their rows are made: they are of other values.
        is_other: whether all pictures that are there are of other values, as those of another job.
        seconds_per_work: seconds for a unit of :func:`work`, from earlier pictures; None if there are none.
        processes: that make the pictures; None if a cluster or a measurement decides.
    """

    job: Job
    pending: list[Row]
    skipped: int
    replaced: int
    groups: list[Group]
    seconds_per_work: float | None
    processes: int | None = 1
    is_other: bool = False

    @property
    def seconds(self) -> float | None:
        """An estimate of the time that sampling takes one process, without preparing networks; None if nothing was measured."""
        total = math.fsum(group.work for group in self.groups)
        return total * self.seconds_per_work if self.seconds_per_work is not None else None

    @functools.cached_property
    def preparations(self) -> Preparations:
        """What all processes together prepare; of one, where their number is not known."""
        return preparations(self.pending, self.processes or 1)


def summary(plan: Plan) -> dict[str, Any]:
    """A plan for JSON, without its rows."""
    return {
        "sources": plan.job.sources,
        "grids": plan.job.grids,
        "rows": len(plan.job.rows),
        "pictures": plan.job.pictures,
        "skipped": plan.skipped,
        "left_out": plan.job.left_out,
        "replaced": plan.replaced,
        "is_other": plan.is_other,
        "to_make": plan.job.pictures - plan.skipped,
        "processes": plan.processes,
        "checkpoints": plan.preparations.checkpoints[0],
        "lora_mixes": plan.preparations.lora_mixes[0],
        "compiles": plan.preparations.compiles[0],
        "most_compiles": plan.preparations.compiles[1] if plan.processes is not None else None,
        "estimated_seconds": round(plan.seconds, 1) if plan.seconds is not None else None,
    }
