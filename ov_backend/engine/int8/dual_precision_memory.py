"""Whether a network fits in memory twice: in int8, and in the device's own precision, to compare the pictures of both."""

from __future__ import annotations

import torch

from ov_backend.core import devices
from ov_backend.engine.request import CompiledEntry
from ov_backend.engine.resources import Resources
from ov_backend.engine.stats import NetworkStats
from ov_backend.memory.available import available_memory

#: Bytes of a weight as it is compiled, by precision.
_BYTES = {"f32": 4, "bf16": 2, "f16": 2}
#: What is compiled takes this many times the bytes of its weights.
_OVERHEAD = 1.2
#: Memory that stays free for everything else.
_SPARE_BYTES = 1 << 30
#: What the user should know of the quality of int8, whatever the error of a step is; docs/measurements.md has the measurements.
MEASURED = "the quality of int8 was measured on a network of 14 million parameters; for yours, your own comparison decides"


class DualPrecisionMemory:
    """Int8 and the device's own precision of one network.

    Args:
        resources: of the engine.
        name: of the network.
        module: the owner of the weights.
        statistics: of the network.
    """

    def __init__(self, resources: Resources, name: str, module: torch.nn.Module, statistics: NetworkStats) -> None:
        self._resources, self._name, self.statistics = resources, name, statistics
        self._weights = sum(weight.numel() for weight in module.parameters())

    @property
    def own(self) -> str:
        """The device's own precision."""
        return devices.resolved_precision(self._resources.settings.replace(precision="auto"))

    @property
    def needed(self) -> int:
        """Estimated bytes of the own form; 0 where it is compiled."""
        compiled = self._resources.compiled
        entries = [entry for key in compiled if (entry := compiled.peek(key)) is not None]
        held = sum(entry.bytes for entry in entries if entry.value.network == self._name and not entry.value.form)
        estimate = int(_OVERHEAD * _BYTES[self.own] * self._weights)
        return 0 if held > estimate / 2 else estimate - held  # of a network by its blocks, some have no other form

    @property
    def free(self) -> int:
        """Bytes that may still be taken: of this machine's memory, and of the budget of what is compiled."""
        compiled = self._resources.compiled
        return max(0, min(available_memory() - _SPARE_BYTES, compiled.budget - compiled.bytes))

    def fits(self) -> bool:
        """Whether the form in the device's own precision fits into memory together with the one in int8."""
        return self.needed <= self.free

    def describe(self) -> str:
        """Whether both fit, as a sentence for the user."""
        needed, free = self.needed, self.free
        if not needed:
            return f"{self.own} and int8 are both in memory: their pictures can be compared"
        figures = f"{needed / 1e9:.1f} GB more are needed, {free / 1e9:.1f} GB are free"
        if needed <= free:
            return f"to compare its pictures with {self.own}, both fit in memory: {figures}"
        return f"to compare its pictures with {self.own}, one form is evicted before the other is compiled: {figures}"

    def make_room(self) -> None:
        """Evict this network where both forms do not fit."""
        if not self.fits():
            self._resources.compiled.evict(lambda key, entry: isinstance(entry, CompiledEntry) and entry.network == self._name)
