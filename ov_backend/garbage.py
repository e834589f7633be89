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


class _Pauses:
    """The blocks in which the collector is paused now, and whether it is to go on after them."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.number = 0
        self.goes_on = False

    def begin(self) -> None:
        with self.lock:
            if not self.number:
                self.goes_on = gc.isenabled()
            self.number += 1
            gc.disable()  # in each block: somebody else may have enabled it

    def end(self) -> None:
        with self.lock:
            self.number = max(0, self.number - 1)
            if not self.number and self.goes_on:
                gc.enable()

    def forked(self) -> None:
        """In the child process no other thread is there that could end its block."""
        paused, self.number, self.lock = self.number > 0, 0, threading.Lock()
        if paused and self.goes_on:
            gc.enable()


_pauses = _Pauses()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pauses.forked)


@contextlib.contextmanager
def paused() -> Iterator[None]:
    """No garbage is collected in this block, in any thread, unless somebody calls ``gc.collect()``; blocks may overlap.

    If another thread disables the collector for good meanwhile, the end of the last block enables it again.
    """
    try:
        _pauses.begin()
        yield
    finally:
        _pauses.end()


_collected = float("-inf")


def collect(short: bool) -> None:
    """Collect garbage, unless that was done a moment ago: the networks of a pipeline are compiled one after another.

    A pipeline that was deleted, with its weights, is garbage: the forwards that stand in the place of its own lead back to it.

    Args:
        short: whether memory is; then it is collected always.
    """
    global _collected
    if short or time.monotonic() - _collected > _EVERY_S:
        gc.collect()
        _collected = time.monotonic()
