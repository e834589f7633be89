"""The weights whose memory was offloaded, and whether they were written since.

A weight's whole pages are mapped from a file without a name, privately: a page that is read comes from the file, and a page
that is written becomes memory of its own. The kernel says which were written, so that nothing is read to find that out.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import BinaryIO

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from ov_backend.core import posix

if posix.has_mapped_memory():
    from ov_backend.memory import linux_memory


@dataclass(frozen=True)
class Region:
    """A weight's memory, as it was when its pages were offloaded.

    ``storage`` does not keep the memory alive, but keeps its identity from being another's. Pages from ``start`` to ``end`` are
    mapped from the file whose ``inode`` is set when the region is added; ``head`` and ``tail`` are the content beside them, and
    ``digest`` is of the whole content.
    """

    storage: StorageWeakRef
    address: int
    size: int
    start: int
    end: int
    head: bytes
    tail: bytes
    digest: bytes
    inode: linux_memory.Inode = None

    def is_of(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor has this memory."""
        storage = tensor.untyped_storage()
        return bool(
            storage._cdata == self.storage.cdata
            and storage.data_ptr() == tensor.data_ptr() == self.address
            and storage.nbytes() == tensor.nbytes == self.size
        )

    def is_unwritten(self, table: BinaryIO) -> bool:
        """Whether all content is what it was; the memory must be alive."""
        return (
            ctypes.string_at(self.address, len(self.head)) == self.head
            and ctypes.string_at(self.end, len(self.tail)) == self.tail
            and not linux_memory.is_written(table, self.start, self.end)
        )


class Regions:
    """All regions of the process; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._regions: dict[int, Region] = {}
        #: Grows when regions are added, or found mapped from elsewhere.
        self.epoch = 0
        #: The numbers of all files that memory was moved into; none of them has a name.
        self.files: set[int] = set()

    def add(self, added: Iterable[Region]) -> None:
        """Take note of regions that were offloaded just now."""
        added = list(added)
        if not added:
            return
        with self._lock:
            self._remove_dead()
            mappings = linux_memory.Mappings.read()
            for region in added:
                inodes = mappings.inodes(region.start, region.end)
                if inodes is not None and len(inodes) == 1 and None not in inodes:
                    self._regions[region.address] = replace(region, inode=next(iter(inodes)))
            self.epoch += 1

    def of(self, tensor: torch.Tensor) -> Region | None:
        """The region of a tensor whose memory was offloaded; None where it was not, or is no longer the same memory."""
        if not self._regions or tensor.device.type != "cpu" or tensor.layout is not torch.strided:
            return None
        region = self._regions.get(tensor.data_ptr())
        return region if region is not None and region.is_of(tensor) else None

    def unwritten(self, tensor: torch.Tensor) -> Region | None:
        """The region of a tensor that was offloaded and not written since, or None."""
        region = self.of(tensor)
        return region if region is not None and self.are_unwritten([(tensor, region)]) else None

    def are_unwritten(self, pairs: Iterable[tuple[torch.Tensor, Region]]) -> bool:
        """Whether these tensors still have their regions' memory and content."""
        pairs = list(pairs)
        if not pairs:
            return True
        with linux_memory.pagemap() as table:
            return all(region.is_of(tensor) and region.is_unwritten(table) for tensor, region in pairs)

    def check_mappings(self) -> None:
        """Remove regions whose memory is no longer mapped from their files: somebody has mapped something else there."""
        with self._lock:
            if self._regions:
                mappings = linux_memory.Mappings.read()
                kept = [r for r in self._regions.values() if mappings.inodes(r.start, r.end) == {r.inode}]
                self.epoch += len(kept) != len(self._regions)
                self._regions = {region.address: region for region in kept}

    def offloaded(self) -> int:
        """Bytes whose pages lie in files and were not written since."""
        with self._lock:
            self._remove_dead()
            if not self._regions:
                return 0
            with linux_memory.pagemap() as table:
                return sum(r.end - r.start for r in self._regions.values() if not linux_memory.is_written(table, r.start, r.end))

    def _remove_dead(self) -> None:
        self._regions = {address: region for address, region in self._regions.items() if not region.storage.expired()}


#: Those of this process.
regions = Regions()
