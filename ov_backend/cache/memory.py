"""The memory of this process and of this machine, as measured."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import psutil

T = TypeVar("T")
_CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def resident_memory() -> int:
    """Bytes of this process that are in memory now, without pages that are shared with files."""
    info = psutil.Process().memory_info()
    return int(info.rss - getattr(info, "shared", 0))  # a weight mapped from a file is nobody's allocation


class _MallInfo(ctypes.Structure):
    """glibc's ``struct mallinfo2``, bytes."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")
    ]


def allocated_memory() -> int:
    """Bytes that this process has allocated: exact with glibc; elsewhere what is resident."""
    function = getattr(ctypes.CDLL(None), "mallinfo2", None) if sys.platform == "linux" else None
    if function is None:
        return resident_memory()
    function.restype = _MallInfo
    info = function()
    return int(info.uordblks + info.hblkhd)  # in heaps and in mappings of their own


def total_memory() -> int:
    """Bytes of memory that this process may use: the machine's, or less where a container says so."""
    total = int(psutil.virtual_memory().total)
    for path in _CGROUP_LIMITS:
        with contextlib.suppress(OSError, ValueError):  # no limit is spelled "max"
            total = min(total, int(Path(path).read_text()))
    return total


def release_free_memory() -> None:
    """Collect garbage, and hand memory that is free back to the system where the C library would keep it."""
    gc.collect()
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's; other C libraries hand it back themselves
        if trim is not None:
            trim(0)


def measured(make: Callable[[], T]) -> tuple[T, int]:
    """What ``make`` returns, and the bytes that were allocated meanwhile and still are (never less than 0)."""
    gc.collect()  # else garbage that is collected meanwhile would count against it
    before = allocated_memory()
    value = make()
    return value, max(0, allocated_memory() - before)
