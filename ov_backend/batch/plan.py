"""The order in which rows run, so that checkpoints are loaded, LoRAs added and sizes compiled as rarely as possible."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from pathlib import Path

from ov_backend.batch.row import Row, Shape


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
        width, height, batch, guided, from_picture = self.shape
        parts = [self.checkpoint.stem, self.precision, f"{width}x{height}"]
        parts += [f"{batch} at once"] if batch > 1 else []
        parts += [] if guided else ["no guidance"]
        parts += ["from a picture"] if from_picture else []
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


def _kind(row: Row) -> tuple[Path, str, tuple[tuple[Path, float], ...], Shape]:
    return row.checkpoint, row.precision, row.loras, row.shape


def work(row: Row) -> float:
    """How much there is to compute, for estimates: pixels of all pictures, times steps, twice with guidance."""
    chosen = row.parameters
    steps = chosen.steps * (chosen.strength or 1.0)
    return chosen.width * chosen.height * chosen.batch * steps * (2 if chosen.guidance > 1 else 1)
