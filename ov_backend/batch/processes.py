"""How many processes of a machine make the most pictures: measured once, and remembered in the folder of the graph store."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ov_backend.batch.row import Row
from ov_backend.cache.store import run_store
from ov_backend.checkpoint.header import read_shapes
from ov_backend.devices import openvino_version

_FILE = "processes.json"
#: Twice as many processes are used if they make this many times the pictures: they take twice the memory.
_GAIN = 1.05
#: The share of a machine's memory that its processes may take together.
_MEMORY_SHARE = 0.8


@dataclass(frozen=True)
class Machine:
    """What decides how fast a machine computes: its processor or other device, logical cores, and memory in bytes."""

    device: str
    cores: int
    memory: int


@dataclass(frozen=True)
class Speed:
    """What a process has shown in a trial: pictures a second, and the bytes of memory that it takes."""

    pictures: float
    memory: int


@dataclass(frozen=True)
class Trial:
    """A trial of several numbers of processes.

    Attributes:
        row: made again and again.
        results: of earlier trials.
    """

    row: Row
    results: Results


class Results:
    """The numbers of processes that trials have found best, kept among the notes of earlier runs.

    Args:
        folder: of the graph store.
    """

    def __init__(self, folder: Path) -> None:
        self._store = run_store(folder)

    def get(self, machine: Machine, row: Row) -> int | None:
        """The best number on such a machine for such rows; None if it was never measured, or its note cannot be used."""
        files = self._store.get(_key(machine, row))
        try:
            count = json.loads(files[_FILE]) if files is not None else None
        except (ValueError, LookupError, RecursionError):
            return None
        return count if type(count) is int and 1 <= count <= machine.cores else None

    def put(self, machine: Machine, row: Row, count: int) -> None:
        """Remember a number; without a folder that can be written to, the next run measures again."""
        self._store.put(_key(machine, row), {_FILE: json.dumps(count).encode()})


def best(machine: Machine, speeds: Callable[[int], list[Speed]]) -> tuple[int, dict[int, float]]:
    """The number of processes that make the most pictures: 1, 2, 4 and so on, while more make more and the memory suffices.

    Args:
        machine: on which they run.
        speeds: takes a number of processes, and returns what each of them has shown; nothing where they failed.

    Returns:
        the number, and the pictures a second of each number that was tried; the number is 1 where one process failed.
    """
    chosen, count, rates = 1, 1, dict[int, float]()
    while count <= machine.cores:
        shown = speeds(count)
        rates[count] = sum(speed.pictures for speed in shown)
        if rates[count] <= _GAIN * rates.get(chosen, 0.0) and count > 1:
            break
        chosen, largest = count, max((speed.memory for speed in shown), default=machine.memory)
        count *= 2
        if largest * count > _MEMORY_SHARE * machine.memory:
            break
    return chosen, rates


def _key(machine: Machine, row: Row) -> str:
    """A machine and a kind of rows: what the networks look like and what they are compiled for, not what they weigh."""
    values = [vars(machine), openvino_version(), row.precision, row.shape, sorted(read_shapes(row.checkpoint).items())]
    return hashlib.sha256(json.dumps(values).encode()).hexdigest()[:32]
