"""Measures the memory of this process and of this machine."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import psutil

from ov_backend.core import garbage, posix

T = TypeVar("T")
#: One of them has the lock that Dynamo holds; PyTorch 2.1 has it in the second.
_OF_DYNAMO = ("torch._dynamo.convert_frame", "torch._dynamo.eval_frame")
_CGROUP = Path("/sys/fs/cgroup")
#: Files with a container's limit, and with what it uses.
_CGROUP_USAGE = (("memory.max", "memory.current"), ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"))


def resident_memory() -> int:
    """Resident bytes of this process, without pages that are shared with files."""
    info = psutil.Process().memory_info()
    return int(info.rss - getattr(info, "shared", 0))  # weights mapped from a file are not allocated


class _MallInfo(ctypes.Structure):
    """glibc's ``struct mallinfo2``; sizes in bytes."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")
    ]


def allocated_memory() -> int:
    """Bytes that this process has allocated; exact with glibc, the resident bytes elsewhere."""
    function = posix.glibc("mallinfo2")
    if function is None:
        return resident_memory()
    function.restype = _MallInfo
    info = function()
    return int(info.uordblks + info.hblkhd)  # in heaps, and in separate mappings


def total_memory() -> int:
    """Bytes of memory that this process may use: the machine's memory, or a container's limit."""
    total = int(psutil.virtual_memory().total)
    for limit, _ in _CGROUP_USAGE:
        with contextlib.suppress(OSError, ValueError):  # "max" means no limit
            total = min(total, int((_CGROUP / limit).read_text()))
    return total


def available_memory() -> int:
    """Bytes of memory that this process may still take: what is free in the machine, or in a container."""
    free = int(psutil.virtual_memory().available)
    for limit, usage in _CGROUP_USAGE:
        with contextlib.suppress(OSError, ValueError):  # "max" means no limit
            free = min(free, int((_CGROUP / limit).read_text()) - int((_CGROUP / usage).read_text()))
    return max(0, free)


def release_free_memory() -> None:
    """Collect garbage, and return free memory to the system where the C library would keep it.

    While Dynamo compiles or is reset, only its own thread collects: what it has compiled may be garbage, and would end meanwhile.
    """
    with contextlib.ExitStack() as held:
        locks: list[Any] = [getattr(sys.modules.get(name), "compile_lock", None) for name in _OF_DYNAMO]
        if all(each.acquire(blocking=False) and held.callback(each.release) for each in locks if each is not None):
            gc.collect()
    trim = posix.glibc("malloc_trim")  # other C libraries return memory themselves
    if trim is not None:
        trim(0)


def measured(make: Callable[[], T]) -> tuple[T, int]:
    """The result of ``make``, and the bytes that it allocated and that are still in use (never less than 0).

    No garbage is collected meanwhile: what it frees would be taken off.
    """
    with garbage.paused():
        before = allocated_memory()
        value = make()
        return value, max(0, allocated_memory() - before)
