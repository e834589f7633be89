"""Python's garbage collector: paused while a network is prepared, and called before weights are compiled.

A trace makes some hundred thousand objects, and every time their number has grown by a quarter the collector looks at all objects
of the process: a third of a second in a process with a pipeline, several times. After a pause it takes up its work as usual.
"""

from __future__ import annotations

import contextlib
import gc
import os
import threading
import time
from collections.abc import Iterator

#: Seconds in which garbage is collected once at most, unless memory is short.
_EVERY_S = 30


class _Collector:
    """In how many blocks the collector is paused now, whether it is to go on after them, and when it was called last."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.pauses = 0
        self.goes_on = False
        self.called_at = float("-inf")

    def begin_pause(self) -> None:
        with self.lock:
            if not self.pauses:
                self.goes_on = gc.isenabled()
            self.pauses += 1
            gc.disable()  # in each block: somebody else may have enabled it

    def end_pause(self) -> None:
        with self.lock:
            self.pauses = max(0, self.pauses - 1)
            if not self.pauses and self.goes_on:
                gc.enable()

    def forked(self) -> None:
        """In the child process no other thread is there that could end its block."""
        paused, self.pauses, self.lock = self.pauses > 0, 0, threading.Lock()
        if paused and self.goes_on:
            gc.enable()

    def call(self, always: bool) -> None:
        if always or time.monotonic() - self.called_at > _EVERY_S:
            gc.collect()
            self.called_at = time.monotonic()


_collector = _Collector()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_collector.forked)


@contextlib.contextmanager
def paused() -> Iterator[None]:
    """No garbage is collected in this block, in any thread, unless somebody calls ``gc.collect()``; blocks may overlap.

    If another thread disables the collector for good meanwhile, the end of the last block enables it again.
    """
    try:
        _collector.begin_pause()
        yield
    finally:
        _collector.end_pause()


def collect(short: bool) -> None:
    """Collect garbage, unless that was done a moment ago and memory is not short: networks are compiled one after another.

    A pipeline that was deleted, with its weights, is garbage: the forwards that stand in the place of its own lead back to it.
    """
    _collector.call(always=short)
