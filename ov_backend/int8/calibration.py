"""Collects the ranges of a network's activations over the calls of a generation, and calls to compare int8 with afterwards."""

from __future__ import annotations

import itertools
import math
import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import Generic, TypeVar

from ov_backend.model.transformations.quantize import Observer, Range

#: A recipe needs as many calls as a short generation has; a longer run of calls is enough without its end.
MIN_CALLS, MAX_CALLS = 8, 64
#: The same for a graph of ``torch.compile``, of whose calls nobody knows what they belong to.
MAX_GRAPH_CALLS = 16
#: How many calls are kept, spread over all of them.
SAMPLES = 4

T = TypeVar("T")


class Calibration(Generic[T]):
    """The ranges so far, over all calls, and a few of these calls.

    Args:
        most: number of calls that are enough without the end of a picture.
        by_blocks: whether the samples are steps of a network by its blocks.

    Attributes:
        name: of the form of the calls that are observed; it tells what was compiled for them from what was for others.
        ended: a picture has ended since the last call that was counted.
        unused: number of runs that began since the last call.
        divided: whether blocks were called in the last step; else the other forward calls the whole network, perhaps.
        wrote: number of steps that wrote into weights; these are not counted.
    """

    _numbers = itertools.count(1)

    def __init__(self, most: int = MAX_CALLS, by_blocks: bool = False) -> None:
        self._most, self.by_blocks, self.name = most, by_blocks, f"observing {next(self._numbers)}"
        self._lock = threading.Lock()
        self._ranges: dict[str, Range] = {}
        #: Every so many calls one is kept; doubled when there are too many.
        self._stride = 1
        self._samples: list[T] = []
        self.calls = self.pictures = self.unused = self.wrote = 0
        self.ended = self.divided = True

    def observer(self, prefix: str = "") -> Observer:
        """Takes the ranges of one call, or of a part of the network in it, with a prefix to their names."""
        return partial(_observe, self._ranges, self._lock, prefix)  # what is compiled may live longer, and keeps no samples alive

    @property
    def wants_sample(self) -> bool:
        """Whether the next call that is counted is kept."""
        return self.calls % self._stride == 0

    def count(self, sample: Callable[[], T] | None) -> None:
        """Count a call; ``sample()`` is kept if its turn has come."""
        with self._lock:
            if sample is not None and self.wants_sample:
                self._samples.append(sample())
                if len(self._samples) >= 2 * SAMPLES:
                    self._samples, self._stride = self._samples[::2], 2 * self._stride
            self.calls, self.pictures, self.ended = self.calls + 1, self.pictures + self.ended, False

    def begin_anew(self) -> None:
        """Forget all calls so far, and their ranges."""
        with self._lock:
            self._ranges.clear()
            self._samples.clear()
            self._stride, self.calls, self.pictures, self.ended = 1, 0, 0, True

    def is_complete(self, ended: bool) -> bool:
        """Whether a recipe can be made; ``ended``: the picture has."""
        return self.calls >= (MIN_CALLS if ended else self._most)

    @property
    def ranges(self) -> dict[str, Range]:
        """The ranges by layer."""
        with self._lock:
            return dict(self._ranges)

    @property
    def samples(self) -> list[T]:
        """Some of the calls, spread over all of them, at most :data:`SAMPLES`."""
        with self._lock:
            count = min(SAMPLES, len(self._samples))
            return [self._samples[round(i * (len(self._samples) - 1) / max(1, count - 1))] for i in range(count)]


def _observe(known: dict[str, Range], lock: threading.Lock, prefix: str, ranges: Mapping[str, Range]) -> None:
    if all(math.isfinite(each.low) and math.isfinite(each.high) for each in ranges.values()):  # else the call is not finite
        with lock:
            for name, new in ranges.items():
                known[f"{prefix}{name}"] = new.joined(known.get(f"{prefix}{name}", new))
