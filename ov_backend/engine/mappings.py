"""Memory mappings of this process, which Linux bounds (``vm.max_map_count``, 65,530 by default).

Each kernel that OpenVINO's CPU device generates has a mapping of its own. Where none is left, no thread can be started, and
OpenVINO ends the process. The device also binds blocks of memory to the NUMA node that it runs on. Two neighbours of which one is
bound are two mappings, and they stay two when the device has freed them: so every network that was evicted would leave some 170.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from ov_backend import posix

if posix.has_mapped_memory():
    from ov_backend import linux_memory

#: A line for each mapping of this process, the most that there may be, and the numbers of the machine's NUMA nodes.
_MAPPINGS, _MAX_MAPPINGS = Path("/proc/self/maps"), Path("/proc/sys/vm/max_map_count")
_NODES = Path("/sys/devices/system/node/online")


def free_mappings() -> float:
    """The share, 0 to 1, of the mappings that this process may have and that it has not got; 1 where there is no bound."""
    with contextlib.suppress(OSError, ValueError):  # only Linux has these files
        return max(0.0, 1 - _MAPPINGS.read_bytes().count(b"\n") / int(_MAX_MAPPINGS.read_text()))
    return 1.0


def merge_mappings() -> None:
    """Give all memory the default NUMA policy, so that the system makes one mapping of neighbours, where there is one node only.

    With one node the policy decides nothing. With several nothing is done: there it says where the networks' memory lies.
    """
    if not posix.has_mapped_memory() or not _has_one_node():
        return
    start = end = 0
    for first, after, inode in linux_memory.Mappings.read().entries:
        if inode is not None:
            continue
        if first != end:
            linux_memory.forget_numa_policy(start, end)
            start = first
        end = after
    linux_memory.forget_numa_policy(start, end)


def _has_one_node() -> bool:
    with contextlib.suppress(OSError):
        return _NODES.read_text().strip().isdecimal()  # else a range or a list
    return False
