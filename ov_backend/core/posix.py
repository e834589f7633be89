"""Every call that only POSIX systems have, each with what replaces it on Windows; no other module names them."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import stat
import sys
from pathlib import Path
from typing import IO, Any

try:
    import fcntl
except ImportError:  # on Windows
    fcntl = None  # type: ignore[assignment]
try:
    import grp
    import pwd
except ImportError:  # on Windows
    grp = pwd = None  # type: ignore[assignment]

#: Open for reading: links are not followed, a pipe does not block, and bytes stay as they are.
READ_FLAGS = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)

#: Of <linux/mman.h>; Python has no name for it.
_MADV_POPULATE_WRITE = 23

_OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH


def has_owners() -> bool:
    """Whether files have an owner and a mode here; on Windows they have access control lists."""
    return hasattr(os, "geteuid")


def user_id() -> int:
    """The number of the user whose rights this process has; -1 on Windows."""
    return os.geteuid() if has_owners() else -1


def foreign_owner(status: os.stat_result) -> bool:
    """Whether a file or folder belongs to another user than this one and root; only where there are owners."""
    return has_owners() and status.st_uid not in (0, user_id())


def others_may_write(status: os.stat_result) -> bool:
    """Whether users other than its owner may write to a file or folder; only where there are modes."""
    if not has_owners() or not status.st_mode & _OTHERS_MAY_WRITE:
        return False
    return bool(status.st_mode & stat.S_IWOTH) or not _is_private_group(status.st_gid, status.st_uid)


def _is_private_group(group: int, user: int) -> bool:
    """Whether a group has one member only; most distributions give such a group to every user."""
    try:
        owner, entry = pwd.getpwuid(user), grp.getgrgid(group)
    except (AttributeError, KeyError):
        return False
    return owner.pw_gid == group and entry.gr_name == owner.pw_name and set(entry.gr_mem) <= {owner.pw_name}


def make_private(handle: int) -> None:
    """Let everybody read an open file and only its owner write to it."""
    if hasattr(os, "fchmod"):
        os.fchmod(handle, 0o644)


def lock(handle: int) -> None:
    """Mark an open file as being written, where the file system has locks; the system releases the lock of a killed process.

    The package filelock locks another file beside it, which would have to be removed too when its process was killed.
    """
    if fcntl is not None:
        with contextlib.suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)


def try_lock(handle: int) -> bool:
    """Lock an open file until it is closed; False if another process, or another open file of this one, has locked it.

    True without a lock where there are none: on Windows, and on some network file systems.
    """
    if fcntl is not None:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:  # the file system has no locks
            return True
    return True


def is_locked(path: Path) -> bool | None:
    """Whether a process marks a file as being written; None where that cannot be known."""
    if fcntl is None:
        return None
    handle = os.open(path, READ_FLAGS)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # a process holds the lock, or the file system has no locks
        return True
    finally:
        os.close(handle)
    return False


def sync_folder(folder: Path) -> None:
    """Make a rename in a folder survive a power failure, where a folder can be flushed."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def reserve(file: IO[bytes], size: int) -> None:
    """Give an empty file its size. Raises OSError if the disk is full; on Windows that shows only when the file is written."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file.fileno(), 0, size)
    else:
        file.truncate(size)


def populate(memory: mmap.mmap, start: int, end: int) -> None:
    """Give a part of a mapping its pages, all at once: one by one, at the first write to each, they take six times as long.

    Where the system cannot (before Linux 5.14), they come at the first write all the same.
    """
    if sys.platform == "linux" and start < end:
        first = start - start % mmap.PAGESIZE
        with contextlib.suppress(OSError):
            memory.madvise(_MADV_POPULATE_WRITE, first, end - first)


def drop_pages(memory: mmap.mmap) -> None:
    """Drop a mapping's pages: a file keeps its content, other memory loses it. Windows drops those of files by itself."""
    if hasattr(mmap, "MADV_DONTNEED"):
        memory.madvise(mmap.MADV_DONTNEED)


def private_memory(size: int) -> mmap.mmap | None:
    """Memory of this process alone, whose pages can be offloaded later; None where the system has none."""
    flags = getattr(mmap, "MAP_PRIVATE", 0) | getattr(mmap, "MAP_ANONYMOUS", 0)
    return mmap.mmap(-1, size, flags=flags) if flags and hasattr(mmap, "MADV_DONTNEED") else None


def has_mapped_memory() -> bool:
    """Whether :mod:`ov_backend.memory.linux_memory` can be imported."""
    return sys.platform == "linux"


def glibc(name: str) -> Any:
    """A function of the GNU C library, or None with another one."""
    return getattr(ctypes.CDLL(None), name, None) if sys.platform == "linux" else None


def use_cores(index: int, of: int) -> int:
    """Run this thread, and those that it starts from now on, on one of so many equal shares of the cores; returns its size.

    Logical cores of one physical core are in one share. With more shares than cores, several have the same one. Where a thread
    cannot be bound (on Windows and on a Mac), nothing is bound.
    """
    if not hasattr(os, "sched_setaffinity"):
        return max((os.cpu_count() or 1) // of, 1)
    cores = sorted(os.sched_getaffinity(0), key=_place_of_core)
    share = cores[index * len(cores) // of : (index + 1) * len(cores) // of] or [cores[index % len(cores)]]
    os.sched_setaffinity(0, share)
    return len(share)


def _place_of_core(core: int) -> tuple[int, int, int]:
    """The package and the physical core of a logical one, and its own number."""
    folder = Path(f"/sys/devices/system/cpu/cpu{core}/topology")
    try:
        return int((folder / "physical_package_id").read_text()), int((folder / "core_id").read_text()), core
    except (OSError, ValueError):
        return 0, core, core
