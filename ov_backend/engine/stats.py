"""Counts and seconds of one accelerated network; fallbacks are logged here."""

from __future__ import annotations

import contextlib
import logging
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from ov_backend.runtime.compiled_graph import Timings

log = logging.getLogger("ov_backend")


@dataclass
class NetworkStats:
    """Statistics of one network so far.

    Attributes:
        captures: how often it was traced.
        graph_hits: how often a graph was loaded from the disk instead.
        compiles: how often OpenVINO compiled it.
        blob_hits: how often a compiled graph was loaded from the disk instead.
        calls: number of calls answered by OpenVINO.
        fallbacks: number of calls answered by PyTorch instead, by reason.
        corrections: number of calls that were computed again or in another way, by reason.
        seconds: time spent, by stage.
        coverage: operators that stay in PyTorch, with counts, in the graph compiled last.
    """

    captures: int = 0
    graph_hits: int = 0
    compiles: int = 0
    blob_hits: int = 0
    calls: int = 0
    fallbacks: Counter[str] = field(default_factory=Counter)
    corrections: Counter[str] = field(default_factory=Counter)
    seconds: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    coverage: dict[str, int] = field(default_factory=dict)

    @contextlib.contextmanager
    def time(self, stage: str) -> Iterator[None]:
        """Add the duration of a block to a stage."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[stage] += time.perf_counter() - start

    def compiled(self, timings: Timings) -> None:
        """Count a compile, or an import from the blob cache (then ``imported`` is not 0), and add its seconds."""
        if timings.imported:
            self.blob_hits += 1
        else:
            self.compiles += 1
        for stage, seconds in (("bind", timings.bind), ("compile", timings.compile), ("import", timings.imported)):
            self.seconds[stage] += seconds

    def fall_back(self, network: str, reason: str) -> None:
        """Count one call that PyTorch answered; the first one for each reason is logged."""
        if reason not in self.fallbacks:
            log.warning("%s runs in PyTorch: %s.", network, reason.rstrip("."))
        self.fallbacks[reason] += 1

    def correct(self, network: str, reason: str, once: bool = False) -> None:
        """Count and log one call that was computed again or in another way; ``once`` logs a reason only the first time."""
        if not once or reason not in self.corrections:
            log.warning("%s: %s.", network, reason)
        self.corrections[reason] += 1

    def as_dict(self) -> dict[str, Any]:
        """The statistics as a dict, for JSON."""
        return {
            "captures": self.captures,
            "graph_hits": self.graph_hits,
            "compiles": self.compiles,
            "blob_hits": self.blob_hits,
            "calls": self.calls,
            "fallbacks": dict(self.fallbacks),
            "corrections": dict(self.corrections),
            "seconds": {stage: round(value, 4) for stage, value in list(self.seconds.items())},
            "in_pytorch": dict(self.coverage),
        }
