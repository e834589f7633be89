"""Gives compiled networks up while something else takes the memory: another program, or a checkpoint that the host loads.

A host like the WebUI holds two models at once while it changes the checkpoint, and says nothing before. If the compiled networks
stayed meanwhile, the system would end the process.
"""

from __future__ import annotations

import logging
import threading
import time
import weakref

from ov_backend.cache.lru import MemoryLRU
from ov_backend.cache.memory import available_memory, total_memory

log = logging.getLogger(__name__)

#: Seconds between two looks. A checkpoint is read at one or two GB a second.
_INTERVAL = 0.25
#: Networks are evicted if less than this share of the memory is free, until twice as much is.
_SHARE = 1 / 16


class Pressure:
    """Watches the free memory in a thread, as long as the store exists.

    Args:
        compiled: the store; it is not kept alive.
    """

    def __init__(self, compiled: MemoryLRU) -> None:
        self._compiled = weakref.ref(compiled)
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def watch(self) -> None:
        """Begin to watch, unless that is going on."""
        with self._lock:
            if self._thread is None or not self._thread.is_alive():  # a forked child has none
                self._thread = threading.Thread(target=_watch, args=(self._compiled,), name="ov_backend memory", daemon=True)
                self._thread.start()


def _watch(reference: weakref.ref[MemoryLRU]) -> None:
    while True:
        time.sleep(_INTERVAL)
        compiled = reference()
        if compiled is None:
            return
        if (evicted := relieve(compiled)) > 0:
            log.warning("Little memory is free: %d compiled networks were evicted; calls that need them compile again", evicted)
        del compiled


def relieve(compiled: MemoryLRU) -> int:
    """Evict networks if little memory is free; returns their number."""
    little = int(total_memory() * _SHARE)
    return compiled.make_room(2 * little) if available_memory() < little else 0
