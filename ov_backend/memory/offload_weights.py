"""Gives the memory of weights back to the system: their content goes into a file without a name, and is mapped from there."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from ov_backend.core import content_hash, posix
from ov_backend.core.errors import OVBackendError
from ov_backend.memory.regions import Region, regions

if posix.has_mapped_memory():
    from ov_backend.memory import linux_memory

#: Smaller weights stay in memory.
MIN_BYTES = 1 << 18
#: Bytes on the disk that stay free.
SPARE_BYTES = 1 << 30

#: Seconds that another thread waits before it may interrupt this one.
_SWITCH_S = 5.0

_giving = threading.Lock()


class CannotOffload(OVBackendError):
    """This system, or this folder, cannot take the memory of weights; the message says why."""


def check(folder: Path) -> None:
    """Check that memory can be offloaded here. Raises CannotOffload if it cannot."""
    if not posix.has_mapped_memory():
        raise CannotOffload("weights can be offloaded on Linux only")
    missing = linux_memory.missing()
    if missing:
        raise CannotOffload(f"giving weights back needs {missing}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CannotOffload(f"there is no folder {folder} for the weights ({error.strerror})") from error
    if linux_memory.lies_in_memory(folder):
        raise CannotOffload(f"the folder {folder} lies in memory itself (tmpfs); set another cache folder")


def offload_weights(tensors: Iterable[torch.Tensor], folder: Path) -> int:
    """Give the memory of weights back; they stay valid, at the same address, with the same content. Returns the bytes.

    Weights that were offloaded and not written since are left as they are. So are small ones, views on a part of a storage,
    shared memory, and whatever is neither a block of the C library's allocator nor mapped privately from a file. The files in
    ``folder`` have no names, and go when the weights are freed, or with the process.

    Raises:
        CannotOffload: not all of them could be offloaded; nothing is lost.
    """
    check(folder)
    with _giving:
        chosen = _chosen(tensors)
        return _move_all(chosen, folder) if chosen else 0


def _move_all(tensors: Sequence[torch.Tensor], folder: Path) -> int:
    """Move weights into files; the bytes that were moved. Raises CannotOffload if not all of them could be moved."""
    moved: list[Region] = []
    mover = linux_memory.Mover()
    try:
        needed, free = sum(tensor.nbytes for tensor in tensors) + SPARE_BYTES, shutil.disk_usage(folder).free
        if free < needed:
            raise OSError(errno.ENOSPC, f"{free >> 20} MiB are free, {needed >> 20} are needed")
        with _undisturbed():
            for tensor in tensors:
                region = _move(tensor, folder, mover)
                if region is not None:
                    moved.append(region)
    except OSError as error:
        raise CannotOffload(f"the weights cannot be written to {folder} ({error.strerror})") from error
    finally:
        mover.close()
        regions.add(moved)  # also those before a failure
    return sum(region.end - region.start for region in moved)


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """In this block no other thread takes the interpreter's lock while pages are replaced, however busy the machine is.

    Threads get it whenever a file is read or written here. Those that wait already do so for the interval that was set before.
    """
    before = sys.getswitchinterval()
    sys.setswitchinterval(_SWITCH_S)
    try:
        time.sleep(2 * before)
        yield
    finally:
        sys.setswitchinterval(before)


def page_out(tensors: Iterable[torch.Tensor]) -> None:
    """Drop the pages of offloaded weights that somebody has read since."""
    for tensor in tensors:
        region = regions.of(tensor)
        if region is not None:
            linux_memory.page_out(region.start, region.end)


def _chosen(tensors: Iterable[torch.Tensor]) -> Sequence[torch.Tensor]:
    """Those that can be offloaded and were not yet, each storage once."""
    candidates = {each.data_ptr(): each for each in tensors if _is_plain(each) and regions.unwritten(each) is None}
    if not candidates:  # as at most calls; a process has thousands of mappings
        return []
    mappings = linux_memory.Mappings.read()
    return [each for each in candidates.values() if _is_replaceable(each, mappings.inodes(*_pages(each)))]


def _is_replaceable(tensor: torch.Tensor, inodes: set[linux_memory.Inode] | None) -> bool:
    """Whether the pages of a tensor can be replaced: those of a block, or those that the host has mapped from a file privately.

    A weight that was offloaded and then written is a block whose pages are still mapped from a file of ours.
    """
    if inodes is None:
        return False
    foreign = {inode for inode in inodes if inode is not None and not (inode[2] and inode[1] in regions.files)}
    return foreign == inodes or (not foreign and linux_memory.is_block(tensor.data_ptr(), tensor.nbytes))


def _is_plain(tensor: torch.Tensor) -> bool:
    """Whether a tensor is an ordinary one that has a storage of its own."""
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.device.type != "cpu" or tensor.nbytes < MIN_BYTES:
        return False
    if tensor.layout is not torch.strided or not tensor.is_contiguous() or tensor.is_conj() or tensor.is_neg():
        return False
    if torch.cuda.is_initialized() and tensor.is_pinned():
        return False
    storage = tensor.untyped_storage()
    return storage.data_ptr() == tensor.data_ptr() and storage.nbytes() == tensor.nbytes


def _pages(tensor: torch.Tensor) -> tuple[int, int]:
    """Where a tensor's first whole page begins, and where its last one ends."""
    page, address = linux_memory.PAGE, tensor.data_ptr()
    return -(-address // page) * page, (address + tensor.nbytes) // page * page


def _move(tensor: torch.Tensor, folder: Path, mover: linux_memory.Mover) -> Region | None:
    """Move one weight into a file of its own; None if another thread is writing it, which loses nothing."""
    address, (start, end) = tensor.data_ptr(), _pages(tensor)
    head = ctypes.string_at(address, start - address)
    digest = content_hash.new()
    digest.update(head)
    with tempfile.TemporaryFile(dir=folder, prefix="weights-", buffering=0) as file:
        regions.files.add(os.fstat(file.fileno()).st_ino)
        posix.reserve(file, end - start)
        mover.write(start, end - start, file)
        for offset in range(0, end - start, mover.bytes_at_once):
            length = min(mover.bytes_at_once, end - start - offset)
            content = mover.replace(start + offset, length, file, offset, tensor.element_size())
            if content is None:
                return None
            digest.update(content)
        linux_memory.start_writing(file)
    tail = ctypes.string_at(end, address + tensor.nbytes - end)
    digest.update(tail)
    storage = StorageWeakRef(tensor.untyped_storage())
    return Region(storage, address, tensor.nbytes, start, end, head, tail, digest.digest())
