"""Python's garbage collector, paused while a network is prepared.

A trace makes some hundred thousand objects, and every time their number has grown by a quarter the collector looks at all objects
of the process: a third of a second in a process with a pipeline. After a pause it does that once.
"""

from __future__ import annotations

import contextlib
import gc
import threading
from collections.abc import Iterator

_lock = threading.Lock()
_pauses = 0
_was_enabled = False


@contextlib.contextmanager
def paused() -> Iterator[None]:
    """No garbage is collected in this block, in any thread, unless somebody calls ``gc.collect()``; blocks may overlap."""
    global _pauses, _was_enabled
    with _lock:
        if not _pauses:
            _was_enabled = gc.isenabled()
            gc.disable()
        _pauses += 1
    try:
        yield
    finally:
        with _lock:
            _pauses -= 1
            if not _pauses and _was_enabled:
                gc.enable()
