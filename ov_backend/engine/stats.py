"""Counts and seconds of one accelerated network; fallbacks are logged here."""

from __future__ import annotations

import contextlib
import logging
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from ov_backend.model.runtime.compiled_graph import Timings

log = logging.getLogger("ov_backend")


@dataclass
class NetworkStats:
    """Statistics of one network so far.

    Attributes:
        captured_again: how often although such a call had been traced before, by what differed first.
        graph_hits: how often its program was loaded from the disk, and not converted.
        blob_hits: how often a compiled graph was loaded from the disk instead.
        calls: number of calls answered by OpenVINO, as a whole or by blocks.
        by_blocks: number of calls answered by blocks, by the reason.
        block_calls: number of blocks' calls answered by OpenVINO.
        blocks_in_pytorch: number of blocks that are left to PyTorch, by class and reason.
        fallbacks: number of calls answered by PyTorch instead, by reason.
        last_reason: why the last call that was not answered as a whole was not.
        corrections: number of calls that were computed again or in another way, by reason.
        in_f32: number of calls that were computed in f32, because an earlier one was not finite in the precision asked for.
        in_pytorch: operators that stay in PyTorch, with counts, in the graph compiled last.
        int8: what precision "int8" does now: its state ("calibrating", "on", "off"), a sentence, and the relative error of a
            call, None while it is not known; empty with another precision.
    """

    captures: int = 0
    captured_again: Counter[str] = field(default_factory=Counter)
    graph_hits: int = 0
    compiles: int = 0
    blob_hits: int = 0
    calls: int = 0
    by_blocks: Counter[str] = field(default_factory=Counter)
    block_calls: int = 0
    blocks_in_pytorch: Counter[str] = field(default_factory=Counter)
    fallbacks: Counter[str] = field(default_factory=Counter)
    last_reason: str = ""
    corrections: Counter[str] = field(default_factory=Counter)
    in_f32: int = 0
    seconds: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    in_pytorch: dict[str, int] = field(default_factory=dict)
    int8: dict[str, Any] = field(default_factory=dict)

    @contextlib.contextmanager
    def time(self, stage: str) -> Iterator[None]:
        """Add the duration of a block to a stage."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[stage] += time.perf_counter() - start

    def captured(self, network: str, why: str) -> None:
        """Count a trace; ``why`` says what differed first from the last one of such a call, or is ""."""
        self.captures += 1
        if why:
            log.info("%s was captured again: %s.", network, why)
            self.captured_again[why] += 1

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
        self.last_reason = reason
        _count(self.fallbacks, reason, f"{network} runs in PyTorch: {reason}")

    def divide(self, network: str, reason: str) -> None:
        """Count one call that was answered by blocks; the first one for each reason is logged."""
        self.last_reason = reason
        self.calls += 1
        _count(self.by_blocks, reason, f"{network} runs by its blocks: {reason}")

    def leave_block(self, network: str, kind: str, reason: str) -> None:
        """Count one block that is left to PyTorch; the first one for each class and reason is logged."""
        _count(self.blocks_in_pytorch, f"{kind}: {reason}", f"A {kind} of {network} is no block: {reason}")

    def correct(self, network: str, reason: str, once: bool = False) -> None:
        """Count and log one call that was computed again or in another way; ``once`` logs a reason only the first time."""
        if not once or reason not in self.corrections:
            log.warning("%s: %s.", network, reason)
        self.corrections[reason] += 1

    def tell_int8(self, network: str, state: str, text: str, error: float | None = None) -> None:
        """Set what precision "int8" does now; a new sentence is logged."""
        if self.int8.get("text") != text:
            log.warning("%s: %s.", network, text)
        self.int8 = {"state": state, "text": text, "error": error}

    def as_dict(self) -> dict[str, Any]:
        """The statistics as a dict, for JSON."""
        counts = {name: dict(value) if isinstance(value, dict) else value for name, value in vars(self).items()}
        del counts["last_reason"]
        return counts | {"seconds": {stage: round(value, 4) for stage, value in list(self.seconds.items())}}


def _count(counts: Counter[str], key: str, text: str) -> None:
    """Count something; the first time it is logged."""
    if key not in counts:
        log.warning("%s.", text.rstrip("."))
    counts[key] += 1
