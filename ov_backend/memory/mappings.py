"""Memory mappings of this process, which Linux bounds (``vm.max_map_count``, 65,530 unless the system sets more).

Each kernel that OpenVINO's CPU device generates has a mapping of its own. Where none is left, no thread can be started, and
OpenVINO ends the process. The device also binds blocks of memory to the NUMA node that it runs on. Two neighbours of which one is
bound are two mappings, and they stay two when the device has freed them: so every network that is evicted leaves some.
"""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

from ov_backend.core import posix

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
