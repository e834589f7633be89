"""Gives back the memory in which compiled networks keep what lies between their operators, when their turn is over.

The CPU device allocates it at the first inference and keeps it: 0.4 GB for Stable Diffusion's VAE at 512x512. It is of use only
to a network that computes again at once, as the UNet does at every step.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Sequence

import torch

from ov_backend.core.errors import pass_on_signals
from ov_backend.model.runtime.program import CompiledProgram

#: A call is the first of a turn if the network rested for this many times the call's own seconds, and for one second more.
_RESTED = 4
_SECONDS = 1.0


class Arenas:
    """Of an engine's networks. A turn is a row of calls of one program, such as the steps of a picture."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ended: weakref.WeakKeyDictionary[CompiledProgram, float] = weakref.WeakKeyDictionary()
        self._in_use: weakref.WeakSet[CompiledProgram] = weakref.WeakSet()
        self._last: weakref.ref[CompiledProgram] | None = None
        self._repeated = 0.0  # when a program was called twice in a row

    def run(self, program: CompiledProgram, inputs: Sequence[torch.Tensor], is_block: bool = False) -> list[torch.Tensor]:
        """Run a program; after the first call of a turn, give back its own memory and that of the turns before.

        The first call cannot know whether a second follows. If one does, the memory is allocated once more. A network's blocks,
        which take turns at every step, keep their memory.
        """
        if is_block:
            return program(inputs)
        began = time.monotonic()
        results = program(inputs)
        for each in self._over(program, began, time.monotonic()):
            try:
                each.release_memory()
            except RuntimeError as error:  # another thread computes with it
                pass_on_signals(error)
        return results

    def _over(self, program: CompiledProgram, began: float, ended: float) -> list[CompiledProgram]:
        """The programs whose memory nobody needs now."""
        with self._lock:
            before, repeated = self._ended.get(program), self._repeated
            self._ended[program] = ended
            if self._last is not None and self._last() is program:
                self._repeated = ended
            self._last = weakref.ref(program)
            if before is not None:
                rested, seconds = began - before, ended - began
                if repeated > before and rested >= seconds:  # between two decodings the UNet was called, if only a few times
                    return [program]
                if rested < _RESTED * seconds + _SECONDS:
                    self._in_use.add(program)
                    return []
            over = {program, *self._in_use}
            self._in_use.clear()
            return list(over)
