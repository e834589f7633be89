"""What a batch would do, and the order of its rows: it loads checkpoints, adds LoRAs and compiles sizes as rarely as it can."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from typing import Any

from ov_backend.batch.job import Job
from ov_backend.batch.row import Row
from ov_backend.hosts.standalone.prompts import CHUNK


@dataclass(frozen=True)
class Group:
    """Rows of one checkpoint, mix of LoRAs, precision and shape; the networks are prepared once for all of them."""

    rows: Sequence[Row]

    @property
    def label(self) -> str:
        """In words: "model, bf16, 512x768, LoRA style 0.8"."""
        row = self.rows[0]
        width, height, batch, guided, from_picture, chunks = row.shape
        parts = [row.checkpoint.stem, row.precision, f"{width}x{height}"]
        parts += [f"{batch} at once"] if batch > 1 else []
        parts += [] if guided else ["no guidance"]
        parts += ["from a picture"] if from_picture else []
        parts += [f"prompts of {CHUNK * (chunks - 1) + 1} to {CHUNK * chunks} tokens"] if chunks > 1 else []
        parts += [f"LoRA {path.stem} {strength:g}" for path, strength in row.loras]
        return ", ".join(parts)

    @property
    def pictures(self) -> int:
        """The number of pictures of all rows."""
        return sum(row.parameters.batch for row in self.rows)

    @property
    def work(self) -> float:
        """What all rows have to compute; see :func:`work`."""
        return math.fsum(work(row) for row in self.rows)


def _kind(row: Row) -> tuple[Hashable, ...]:
    """What networks are prepared for, beginning with what takes longest."""
    return row.checkpoint, row.loras, row.precision, row.shape


def ordered(rows: Iterable[Row]) -> list[Row]:
    """The rows in the order in which they run; what comes first in the job comes first here."""
    first: dict[Hashable, int] = {}

    def order(row: Row) -> tuple[int, ...]:
        kind = _kind(row)
        ranks = [first.setdefault(kind[:length], len(first)) for length in range(1, len(kind) + 1)]
        return *ranks, row.number

    return sorted(rows, key=order)


def groups(rows: Iterable[Row]) -> list[Group]:
    """The groups of rows that are in order."""
    return [Group([*members]) for _, members in groupby(rows, _kind)]


def shares(rows: Sequence[Row], processes: int) -> Iterator[Sequence[Row]]:
    """Divide rows that are in order into shares of one kind each; a process takes one share after the other.

    A group is one share, so that only one process prepares its networks. If a group is more than half of what each process has
    to do on average, it is divided into equal shares.
    """
    most = sum(work(row) for row in rows) / processes / 2
    for group in groups(rows):
        count = len(group.rows)
        parts = min(math.ceil(group.work / most), processes * 2, count) if processes > 1 else 1
        bounds = [count * i // parts for i in range(parts + 1)]
        yield from (group.rows[first:last] for first, last in pairwise(bounds))


def in_two_steps(row: Row) -> Row:
    """The same row with two steps, for a measurement."""
    chosen = row.parameters
    steps = 2 if chosen.strength is None else math.ceil(2 / chosen.strength)
    return replace(row, parameters=replace(chosen, steps=steps))


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
        replaced: number of pictures that are there and go once those of their rows are made: they are of other values.
        is_other: whether all pictures that are there are of other values, as those of another job.
        seconds_per_work: seconds for a unit of :func:`work`, from earlier pictures; None if there are none.
        processes: that make the pictures; None if a cluster decides.
    """

    job: Job
    pending: list[Row]
    skipped: int
    replaced: int
    is_other: bool
    seconds_per_work: float | None
    processes: int | None

    @property
    def seconds(self) -> float | None:
        """An estimate of the time that sampling takes one process, without preparing networks; None if nothing was measured."""
        total = math.fsum(work(row) for row in self.pending)
        return total * self.seconds_per_work if self.seconds_per_work is not None else None

    @property
    def most_compiles(self) -> int | None:
        """How often all processes together compile the networks of a group at most; None where their number is not known.

        A process compiles for each of its shares at most once. It is at least once for each group.
        """
        return sum(1 for _ in shares(self.pending, self.processes)) if self.processes is not None else None


def summary(plan: Plan) -> dict[str, Any]:
    """A plan for JSON, without its rows; of the checkpoints, mixes of LoRAs and compiles what one process prepares."""
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
        "checkpoints": len({row.checkpoint for row in plan.pending}),
        "lora_mixes": len({(row.checkpoint, row.loras) for row in plan.pending if row.loras}),
        "compiles": len(groups(plan.pending)),
        "most_compiles": plan.most_compiles,
        "estimated_seconds": round(plan.seconds, 1) if plan.seconds is not None else None,
    }
