"""Checksums of live tensors: each is read in full when it is new or has changed, and again from time to time.

A write through ``.data`` or numpy counts no version, and may miss the elements that are compared at every check. Only reading
everything finds it, which takes a tenth of a second for each GB or so.
"""

from __future__ import annotations

import operator
import os
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import torch

from ov_backend.guards import content
from ov_backend.guards.content import Mark
from ov_backend.memory.regions import Region, regions

T = TypeVar("T")
R = TypeVar("R")

#: Everything is read again after this many times the seconds that it takes, so that it takes at most a hundredth of the time.
_PATIENCE = 100
#: The same where a run of calls begins, or before a compile.
_PATIENCE_AT_START = 20
#: So many tensors are read without threads.
_FEW = 4


@dataclass(frozen=True)
class Known:
    """What was noted of one tensor: which object it was, where and which version, a few elements, its content's hash and name.

    ``written`` is the tensor's region, if its memory had been offloaded and was written again when this was noted. Of any other
    region the kernel says whether its content is still that of the time when it was offloaded, which has a hash.
    """

    tensor: weakref.ref[torch.Tensor]  # not its id: that may be another tensor's by now
    mark: Mark
    probe: torch.Tensor
    digest: bytes
    name: str
    written: Region | None

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Known:
        """Read a tensor in full."""
        region = regions.of(tensor)
        written = region if region is not None and not regions.are_unwritten([(tensor, region)]) else None
        mark, probe = content.mark(tensor), content.probe(tensor).clone()
        digest = content.hashed(tensor)
        return cls(weakref.ref(tensor), mark, probe, digest, content.name(tensor, digest), written)

    def is_still(self, tensor: torch.Tensor) -> bool:
        """Whether it is the same object, and seems to have the same content."""
        if self.tensor() is not tensor or self.mark != content.mark(tensor):
            return False
        region = self.watched(tensor)
        if region is not None:
            return self.digest == region.digest and regions.are_unwritten([(tensor, region)])
        return torch.equal(self.probe, content.probe(tensor))

    def watched(self, tensor: torch.Tensor) -> Region | None:
        """The region that says whether the tensor was written since; None where its elements have to be compared."""
        region = regions.of(tensor)
        return None if region is self.written else region

    def has_changed(self) -> bool:
        """Whether the content of a tensor that still exists has become another; it is read, unless it lies on the disk."""
        tensor = self.tensor()
        if tensor is None:
            return False
        region = regions.unwritten(tensor)
        return self.digest != (region.digest if region is not None else content.hashed(tensor))


class Readings:
    """How long it takes to read everything that is read for one network; for its blocks, all of them together.

    Each is read as rarely as the whole network would be. With patience for its own seconds alone, a block, which is read in no
    time, would be read at every step.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._all: weakref.WeakSet[Checksums] = weakref.WeakSet()

    def add(self, checksums: Checksums) -> None:
        """Count the seconds of these as long as they exist."""
        with self._lock:
            self._all.add(checksums)

    def seconds(self) -> float:
        """Seconds of the last readings, together."""
        with self._lock:
            return sum(each.seconds for each in self._all)


class Checksums:
    """What is known of live tensors, so that several guards read each of them once; ``seconds`` is how long reading all took.

    The readings are those of the network of which these weights are a part.
    """

    def __init__(self, readings: Readings | None = None) -> None:
        self._readings = Readings() if readings is None else readings
        self._known: dict[int, Known] = {}
        self._read_at, self.seconds = time.monotonic(), 0.0
        #: How often reading everything again has found a change that nothing else had shown.
        self.changes = 0
        self._readings.add(self)

    def of(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, Known]:
        """What is known of these tensors now; only those that changed are read in full."""
        self._known = {key: known for key, known in self._known.items() if known.tensor() is not None}
        stale, start = [tensor for tensor in tensors.values() if not self._is_known(tensor)], time.monotonic()
        for tensor, known in zip(stale, _in_threads(Known.of, stale)):
            self._known[id(tensor)] = known
        if len(stale) == len(self._known):  # everything was read just now
            self._read_at = time.monotonic()
            self.seconds = self._read_at - start
        return {name: self._known[id(tensor)] for name, tensor in tensors.items()}

    def read_again(self, starts: bool = False, always: bool = False) -> None:
        """Read everything again if that is due: sooner where a run of calls, or a compile, ``starts``."""
        start = time.monotonic()
        if not always and start - self._read_at < self._readings.seconds() * (_PATIENCE_AT_START if starts else _PATIENCE):
            return
        regions.check_mappings()
        known = list(self._known.items())
        changed = [key for (key, _), differs in zip(known, _in_threads(lambda item: item[1].has_changed(), known)) if differs]
        for key in changed:
            del self._known[key]
        self.changes += bool(changed)
        self._read_at = time.monotonic()
        self.seconds = self._read_at - start

    def read_since(self, moment: float) -> None:
        """Read everything again, unless that was done since a moment of the monotonic clock."""
        if self._read_at - self.seconds < moment:
            self.read_again(always=True)

    def _is_known(self, tensor: torch.Tensor) -> bool:
        known = self._known.get(id(tensor))
        return known is not None and known.is_still(tensor)


def _in_threads(function: Callable[[T], R], values: Sequence[T]) -> list[R]:
    """``map`` over tensors, most of them large; hashing releases the interpreter's lock.

    Each thread takes the next tensor when it is done with one. A task for each of some hundred tensors would cost more than
    reading the smaller ones: every task waits for the interpreter's lock, several times.
    """
    if len(values) <= _FEW:
        return list(map(function, values))
    results: list[tuple[int, R]] = []
    waiting = iter(list(enumerate(values)))

    def work() -> None:
        results.extend([(number, function(value)) for number, value in waiting])

    threads = min(os.cpu_count() or 1, len(values))
    with ThreadPoolExecutor(threads) as pool:
        for task in [pool.submit(work) for _ in range(threads)]:
            task.result()
    return [result for _, result in sorted(results, key=operator.itemgetter(0))]
