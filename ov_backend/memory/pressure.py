"""Gives compiled networks up while something else takes the memory: another program, or a checkpoint that the host loads.

A host like the WebUI holds two models at once while it changes the checkpoint, and says nothing before. If the compiled networks
stayed meanwhile, the system would end the process.

Memory mappings run out too, which Linux bounds (``vm.max_map_count``, 65,530 unless the system sets more). Each kernel that
OpenVINO's CPU device generates has a mapping of its own; where none is left, no thread can be started, and OpenVINO ends the
process. The device also binds blocks of memory to the NUMA node that it runs on. Two neighbours of which one is bound are two
mappings, and they stay two when the device has freed them: so every network that is evicted leaves some. So before a compile,
mappings are merged and networks evicted where few are free.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
import time
import weakref
from pathlib import Path

from ov_backend.core import posix
from ov_backend.core.errors import DeviceError
from ov_backend.memory.available import available_memory, total_memory
from ov_backend.memory.eviction import MemoryLRU

if posix.has_mapped_memory():
    from ov_backend.memory import linux_memory

#: A line for each mapping of this process, and the most that there may be.
_MAPPINGS, _MAX_MAPPINGS = Path("/proc/self/maps"), Path("/proc/sys/vm/max_map_count")


def free_mappings() -> int:
    """How many more mappings this process may have; ``sys.maxsize`` where there is no bound."""
    with contextlib.suppress(OSError, ValueError):  # only Linux has these files
        return int(_MAX_MAPPINGS.read_text()) - _MAPPINGS.read_bytes().count(b"\n")
    return sys.maxsize


def merge_mappings() -> None:
    """Give all memory the default NUMA policy, so that the system makes one mapping of most neighbours.

    With one node the policy decides nothing. With several it would say where memory comes from that is used from now on, which
    matters less than the process. Neighbours that were first written to after one of them was bound stay apart.
    """
    if not posix.has_mapped_memory():
        return
    with contextlib.suppress(OSError):  # the list of mappings cannot be read
        run: list[tuple[int, int]] = []
        for start, end, inode in [*linux_memory.Mappings.read().entries, (0, 0, None)]:
            if run and (inode is not None or start != run[-1][1]):
                if len(run) > 1:
                    linux_memory.forget_numa_policy(run[0][0], run[-1][1])
                run = []
            if inode is None:
                run.append((start, end))


log = logging.getLogger(__name__)

#: Seconds between two looks. A checkpoint is read at one or two GB a second.
_INTERVAL = 0.25
#: Networks are evicted if less than this share of the memory is free, until twice as much is.
_SHARE = 1 / 16
#: Networks are evicted before a compile if fewer memory mappings than the first number are free, until the second is. With fewer
#: than the third nothing is compiled: a UNet takes some 900, those of blocks add up to more, and so do the host's threads.
_FEW_MAPPINGS, _ENOUGH_MAPPINGS, _TOO_FEW_MAPPINGS = 10_000, 16_000, 5_000


class Pressure:
    """Watches the free memory in a thread, as long as the store exists, which is not kept alive."""

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


def enough_mappings() -> bool:
    """Whether so many memory mappings are free that no network need be evicted before a compile."""
    return free_mappings() >= _FEW_MAPPINGS


def relieve_mappings(compiled: MemoryLRU) -> None:
    """Merge memory mappings before a compile if few are free, and evict networks if that is not enough.

    Raises:
        DeviceError: hardly any are free even so; the compile would end the process.
    """
    if enough_mappings():
        return
    merge_mappings()
    if enough_mappings():
        return
    if evicted := compiled.evict_until(_have_become_enough):
        text = "Few memory mappings are free: %d compiled networks were evicted; calls that need them compile again"
        log.warning(text, evicted)
    if free_mappings() < _TOO_FEW_MAPPINGS:
        raise DeviceError(
            "hardly any memory mappings of this process are free, and OpenVINO would end it for lack of them; "
            "a restart frees them, and a larger vm.max_map_count in the system's settings allows more"
        )


def _have_become_enough() -> bool:
    """Whether enough memory mappings are free after an eviction."""
    merge_mappings()
    return free_mappings() >= _ENOUGH_MAPPINGS
