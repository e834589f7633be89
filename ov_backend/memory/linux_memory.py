"""Calls of Linux about this process's memory: moved into a file, written since, bound to a node; no other module names them."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import functools
import mmap
import os
import struct
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

PAGE = mmap.PAGESIZE

#: Of <linux/mman.h>, <linux/fcntl.h>, <linux/splice.h> and <linux/magic.h>; Python has no names for them.
_MAP_FIXED, _MAP_NORESERVE = 0x10, 0x4000
_MADV_PAGEOUT, _MADV_POPULATE_WRITE = 21, 23
_F_SETPIPE_SZ, _F_GETPIPE_SZ = 1031, 1032
_SPLICE_F_NONBLOCK = 2
_IN_MEMORY = {0x01021994, 0x858458F6}  # tmpfs, ramfs
#: The call that looks for pages, of <linux/fs.h> since Linux 6.7, and what it calls those of a file, in memory and swapped out.
_PAGEMAP_SCAN, _IS_FILE, _IS_PRESENT, _IS_SWAPPED = 0xC0606610, 4, 8, 16
#: The number of the call mbind, which the C library has no function for, and its default policy.
_MBIND, _MPOL_DEFAULT = {"x86_64": 237, "aarch64": 235}, 0
#: Bytes of which the pages are replaced at once; a moment in which no other Python code runs.
_AT_ONCE = 1 << 18
#: Bytes that are written to a file at once.
_WRITTEN_AT_ONCE = 1 << 20
#: Bits of the header that the GNU C library writes in front of every block.
_IN_USE, _IS_MMAPPED, _FLAGS = 1, 2, 7

#: Where memory is mapped from: device and number of a file, and whether the file has lost its name; None for memory that is no
#: file's. A file system gives the number of a file that is gone to the next one.
Inode = tuple[str, int, bool] | None


class _Piece(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]


class _Scan(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("size", "flags", "start", "end", "walk_end", "vec", "vec_len", "max_pages")]
    _fields_ += [(name, ctypes.c_uint64) for name in ("inverted", "all_of", "any_of", "returned")]


class _Symbol(ctypes.Structure):
    _fields_ = [("file", ctypes.c_char_p), ("base", ctypes.c_void_p), ("name", ctypes.c_char_p), ("address", ctypes.c_void_p)]


def _libc() -> Any:
    libc = ctypes.PyDLL(None, use_errno=True)  # keeps the interpreter's lock
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
    libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    libc.vmsplice.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_ulong, ctypes.c_uint]
    libc.vmsplice.restype = ctypes.c_ssize_t
    libc.memcmp.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t]
    libc.memmove.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t]
    libc.read.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t]
    libc.read.restype = ctypes.c_ssize_t
    return libc


def missing() -> str:
    """What this system lacks for moving memory into a file, or "" where it has everything."""
    libc = ctypes.CDLL(None)
    if not all(hasattr(libc, name) for name in ("gnu_get_libc_version", "vmsplice", "dladdr")):
        return "the GNU C library"
    symbol = _Symbol()
    libc.dladdr(ctypes.cast(libc.posix_memalign, ctypes.c_void_p), ctypes.byref(symbol))
    allocator = Path(os.fsdecode(symbol.file or b"?")).name
    if not allocator.startswith(("libc.so", "libc-")):
        return f"the GNU C library's own memory allocator (here it is {allocator})"
    with contextlib.suppress(OSError):
        if Path("/proc/sys/vm/overcommit_memory").read_text().strip() == "2":
            return "memory that may be overcommitted (vm.overcommit_memory is 2)"
    try:
        with Path("/proc/self/pagemap").open("rb") as file:
            file.read(8)
        with mmap.mmap(-1, PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as page:
            page.madvise(_MADV_POPULATE_WRITE)
    except (OSError, ValueError):
        return "Linux 5.14 or later with /proc/self/pagemap"
    return ""


def lies_in_memory(folder: Path) -> bool:
    """Whether the files of a folder take memory, not disk (tmpfs, ramfs)."""
    status = ctypes.create_string_buffer(512)
    if ctypes.CDLL(None).statfs(os.fsencode(folder), status):
        return False
    return int.from_bytes(status.raw[:4], "little") in _IN_MEMORY  # a long, whose upper half is 0


@dataclass(frozen=True)
class Mappings:
    """What this process has mapped, as of now."""

    starts: Sequence[int]
    entries: Sequence[tuple[int, int, Inode]]

    @classmethod
    def read(cls) -> Mappings:
        """Read what is mapped privately and may be written; all else is left out."""
        entries = []
        with Path("/proc/self/maps").open(encoding="utf-8", errors="replace") as file:
            for line in file:
                place, mode, _, device, inode, *name = line.split(maxsplit=5)
                start, end = (int(each, 16) for each in place.split("-"))
                special = inode == "0" and name and not name[0].startswith(("[heap]", "[anon"))
                if mode.startswith("rw-p") and not special:
                    unnamed = bool(name) and name[0].rstrip().endswith(" (deleted)")
                    entries.append((start, end, (device, int(inode), unnamed) if inode != "0" else None))
        return cls([start for start, _, _ in entries], entries)

    def inodes(self, start: int, end: int) -> set[Inode] | None:
        """Where the memory from ``start`` to ``end`` is mapped from; None where a part of it is not mapped like that."""
        found: set[Inode] = set()
        index = bisect_right(self.starts, start) - 1
        while start < end:
            if not 0 <= index < len(self.entries) or not self.entries[index][0] <= start < self.entries[index][1]:
                return None
            found.add(self.entries[index][2])
            start, index = self.entries[index][1], index + 1
        return found


def is_block(address: int, size: int) -> bool:
    """Whether memory is one block of the GNU C library's allocator, in use, as its header says.

    Nothing of the library looks at a block's inner pages before it is freed. Then it unmaps them, or uses them again as memory
    with any content.
    """
    try:
        with Path("/proc/self/mem").open("rb", buffering=0) as memory:
            before, header = struct.unpack("NN", os.pread(memory.fileno(), 16, address - 16))
            length = header & ~_FLAGS
            if header & _IS_MMAPPED:
                aligned = not (address - 16 - before) % PAGE and not (before + length) % PAGE
                return aligned and size <= length - 16 < size + 2 * PAGE
            _, after = struct.unpack("NN", os.pread(memory.fileno(), 16, address - 16 + length))
            return size <= length - 8 < size + PAGE and bool(after & _IN_USE)
    except (OSError, struct.error, OverflowError, ValueError):
        return False


class Mover:
    """Moves memory into a file; close it when done.

    Memory that another thread is writing stays where it is. Should one begin to write at the very moment when pages are
    replaced, its writes are found in the old pages, which a pipe holds, and are written again. The interpreter's lock is kept
    meanwhile, so that no Python code reads the memory before that.
    """

    def __init__(self) -> None:
        self._libc = _libc()
        self._out, self._in = os.pipe()
        with contextlib.suppress(OSError):
            fcntl.fcntl(self._in, _F_SETPIPE_SZ, _AT_ONCE)
        #: The most that :meth:`replace` takes.
        self.bytes_at_once = min(_AT_ONCE, int(fcntl.fcntl(self._in, _F_GETPIPE_SZ)))

    def close(self) -> None:
        """Close the pipe."""
        os.close(self._out)
        os.close(self._in)

    def write(self, address: int, length: int, file: BinaryIO) -> None:
        """Write memory into an empty file. Raises OSError if the file could not be written."""
        _write(file.fileno(), memoryview((ctypes.c_char * length).from_address(address)).cast("B"))

    def replace(self, address: int, length: int, file: BinaryIO, offset: int, item: int) -> bytes | None:
        """Map whole pages from the file that they were written to, private and copy-on-write.

        ``length`` is at most ``bytes_at_once``, ``offset`` in the file a multiple of the page size, ``item`` the bytes of one
        number. Returns the content, or None if it is no longer that of the file; then the pages may have been replaced or not.

        Raises:
            OSError: the memory could not be mapped; then it is as it was.
        """
        content = os.pread(file.fileno(), length, offset)  # the last call that lets other threads run
        self._check(self._libc.madvise(address, length, _MADV_POPULATE_WRITE))  # what a fork shares becomes our own
        spliced = self._splice(address, length)
        try:
            replaced = len(content) == length and not self._libc.memcmp(address, content, length)
            if replaced:
                self._map(address, content, file.fileno(), offset)
        finally:
            late = self._old(spliced)
        if replaced and late != content:
            for offset in range(0, length, PAGE):
                self._write_again(address + offset, content[offset : offset + PAGE], late[offset : offset + PAGE], item)
        return content if replaced and late == content else None

    def _splice(self, address: int, length: int) -> int:
        done = 0
        while done < length:
            piece = _Piece(address + done, length - done)
            count = self._libc.vmsplice(self._in, ctypes.byref(piece), 1, _SPLICE_F_NONBLOCK)
            if count <= 0:
                number = ctypes.get_errno() if count else errno.EAGAIN
                self._old(done)
                raise OSError(number, os.strerror(number))
            done += count
        return done

    def _old(self, length: int) -> bytes:
        """The content of the pages that the pipe holds."""
        buffer, done = ctypes.create_string_buffer(length), 0
        while done < length:
            done += self._libc.read(self._out, ctypes.addressof(buffer) + done, length - done)
        return buffer.raw

    def _map(self, address: int, content: bytes, handle: int, offset: int) -> None:
        flags = mmap.MAP_PRIVATE | _MAP_FIXED | _MAP_NORESERVE
        access = mmap.PROT_READ | mmap.PROT_WRITE
        if self._libc.mmap(address, len(content), access, flags, handle, offset) == address:
            return
        number = ctypes.get_errno()
        self._libc.mmap(address, len(content), access, flags | mmap.MAP_ANONYMOUS, -1, 0)  # the old pages may be unmapped
        ctypes.memmove(address, content, len(content))
        raise OSError(number, os.strerror(number))

    def _write_again(self, address: int, content: bytes, late: bytes, item: int) -> None:
        """Write what was written last to an old page; a still later write to the new one stays. This keeps the lock, too."""
        if late == content:
            return
        if not self._libc.memcmp(address, content, len(content)):
            self._libc.memmove(address, late, len(late))
            return
        for i in range(0, len(content), item):
            before, after = content[i : i + item], late[i : i + item]
            if before != after and not self._libc.memcmp(address + i, before, item):
                self._libc.memmove(address + i, after, item)

    @staticmethod
    def _check(result: int) -> None:
        if result:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))


def start_writing(file: BinaryIO) -> None:
    """Have the system begin to write a file to the disk, without waiting; pages that are on the disk can be dropped."""
    with contextlib.suppress(OSError):
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def page_out(start: int, end: int) -> None:
    """Drop pages that a file has; pages that were written stay, or go to the swap space."""
    libc = ctypes.CDLL(None)
    libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    libc.madvise(start, end - start, _MADV_PAGEOUT)  # an older or a busy system keeps them


def forget_numa_policy(start: int, end: int) -> None:
    """Give memory the default NUMA policy. Its pages stay where they are, and a system that refuses keeps the policy."""
    number = _MBIND.get(os.uname().machine)
    if number is not None:
        _syscall()(*(ctypes.c_ulong(each) for each in (number, start, end - start, _MPOL_DEFAULT, 0, 0, 0)))


@functools.cache
def _syscall() -> Any:
    return ctypes.CDLL(None).syscall


@contextlib.contextmanager
def pagemap() -> Iterator[BinaryIO]:
    """The kernel's table of this process's pages, for :func:`is_written`."""
    with Path("/proc/self/pagemap").open("rb", buffering=0) as file:
        yield file


def is_written(table: BinaryIO, start: int, end: int) -> bool:
    """Whether a page of privately mapped file memory was written since it was mapped; nothing of it is read.

    Such a page is in memory or in the swap space (bits 63 and 62), and is no file's (bit 61).
    """
    found = (ctypes.c_uint64 * 3)()
    scan = _Scan(ctypes.sizeof(_Scan), 0, start, end, 0, ctypes.addressof(found), 1, 1)
    scan.inverted, scan.all_of, scan.any_of, scan.returned = _IS_FILE, _IS_FILE, _IS_PRESENT | _IS_SWAPPED, _IS_PRESENT
    with contextlib.suppress(OSError):  # before Linux 6.7; it takes a fifth of the time
        return bool(fcntl.ioctl(table, _PAGEMAP_SCAN, scan))
    count = (end - start) // PAGE
    entries = np.frombuffer(os.pread(table.fileno(), 8 * count, 8 * (start // PAGE)), dtype=np.uint64)
    kinds = entries >> np.uint64(61)
    return len(entries) != count or bool(((kinds >= 2) & (kinds & 1 == 0)).any())


def _write(handle: int, view: memoryview) -> None:
    offset = 0
    while offset < len(view):
        offset += os.pwrite(handle, view[offset : offset + _WRITTEN_AT_ONCE], offset)
