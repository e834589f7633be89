"""The memory that a compile takes, and what is evicted for it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from ov_backend.core import devices
from ov_backend.engine.request import CompileRequest
from ov_backend.engine.resources import Resources
from ov_backend.memory import available as memory
from ov_backend.memory.pressure import enough_mappings
from ov_backend.model.runtime.program import CompiledProgram

log = logging.getLogger(__name__)

#: What a compiled graph takes of its weights' size in float32, in a half precision and in f32.
_LEFT_HALF, _LEFT_F32 = 0.57, 1.0
#: What a compile that no call waits for may need of that at its peak.
_PEAK = 2.0
#: How many times as much is to be free before a compile; it takes no more at its peak, but its first call needs memory too.
_SPARE = 1.5


@dataclass(frozen=True)
class CompileMemory:
    """The memory for what a request asks to compile."""

    resources: Resources
    request: CompileRequest

    @property
    def float_bytes(self) -> int:
        """What the weights take in float32."""
        return sum(4 * tensor.numel() for tensor in self.request.weights.values())

    @property
    def needed(self) -> int:
        """The bytes that a compile takes, at most."""
        left = _LEFT_F32 if devices.resolved_precision(self.request.settings) == "f32" else _LEFT_HALF
        return int(_SPARE * left * self.float_bytes)

    def is_short(self) -> bool:
        """Whether the machine has less memory free than a compile takes."""
        return memory.available_memory() < self.needed

    def evict_others(self, name: str) -> None:
        """Evict other compiled graphs where the machine has less memory free than that of the network of this name will take."""
        if evicted := self.resources.compiled.make_room(self.needed):
            text = "%s: little memory is free, so %d of the compiled networks were evicted; they are compiled again when needed"
            log.warning(text, name, evicted)

    def fits_beside_others(self) -> bool:
        """Whether the compiled form fits into the memory budget beside the others, and into the machine's memory."""
        weights, compiled, low_memory = self.float_bytes, self.resources.compiled, self.resources.low_memory
        if low_memory.is_wanted(self.request.settings, sum(tensor.nbytes for tensor in self.request.weights.values())):
            return False  # weights are offloaded meanwhile, one network after another
        fits = compiled.bytes + _LEFT_F32 * weights <= compiled.budget and _PEAK * weights <= memory.available_memory()
        return fits and enough_mappings()

    def measured(self, make: Callable[[], CompiledProgram]) -> tuple[CompiledProgram, int]:
        """A compiled program and its size; bounded by that of the weights where something else was compiled meanwhile."""
        ahead = self.resources.ahead
        overlaps, before = ahead.running, ahead.changes
        compiled, size = memory.measured(make)
        if overlaps or ahead.changes != before:
            largest = 2 * self.float_bytes
            size = min(max(size, largest // 4), largest)
        return compiled, size

    def retried_alone(self, make: Callable[[], CompiledProgram]) -> CompiledProgram:
        """Compile; if that fails, perhaps for lack of memory, evict every other compiled graph and try once more."""
        try:
            return make()
        except (MemoryError, RuntimeError):
            if not self.resources.compiled.evict(lambda key, entry: True):
                raise
            return make()
