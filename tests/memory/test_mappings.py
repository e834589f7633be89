"""Memory mappings are counted, and neighbours of which OpenVINO's CPU device has bound one become one again."""

from __future__ import annotations

import copy
import ctypes
import mmap
import os
import sys
from pathlib import Path

import pytest
import torch

from ov_backend import Settings
from ov_backend.engine.engine import Engine
from ov_backend.memory import pressure
from tests.helpers.alone import alone

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux bounds memory mappings")

PAGES = 64
#: Of <linux/mempolicy.h>: memory comes from the nodes of a mask.
BIND = 2


def count(start: int = 0, end: int = 1 << 64) -> int:
    """The mappings of this process between two addresses."""
    lines = Path("/proc/self/maps").read_text(errors="replace").splitlines()
    places = [[int(each, 16) for each in line.split(maxsplit=1)[0].split("-")] for line in lines]
    return sum(first < end and after > start for first, after in places)


class Bound:
    """Pages full of "x" of which every other one is bound to the first NUMA node, after they are written or before."""

    def __init__(self, written_first: bool) -> None:
        self.memory = mmap.mmap(-1, PAGES * mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.start = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        self.end = self.start + len(self.memory)
        if written_first:
            self._write()
        for page in range(1, PAGES, 2):
            _bind(self.start + page * mmap.PAGESIZE)
        if not written_first:
            self._write()
        assert count(self.start, self.end) == PAGES

    def _write(self) -> None:
        self.memory[:] = b"x" * len(self.memory)


def _bind(page: int) -> None:
    from ov_backend.memory import linux_memory

    number = linux_memory._MBIND.get(os.uname().machine)
    if number is None:
        pytest.skip("mbind has another number on this processor")
    mask = ctypes.c_ulong(1)
    arguments = (number, page, mmap.PAGESIZE, BIND, ctypes.addressof(mask), 64, 0)
    if ctypes.CDLL(None).syscall(*map(ctypes.c_ulong, arguments)):
        pytest.skip("this system knows no NUMA, or refuses mbind")


def test_memory_mappings_are_counted() -> None:
    before = pressure.free_mappings()
    maps = [mmap.mmap(-1, 4096, prot=mmap.PROT_READ | (i % 2) * mmap.PROT_WRITE) for i in range(2000)]
    assert before - pressure.free_mappings() == pytest.approx(len(maps), rel=0.1)


def test_a_system_without_a_bound_has_any_number_free(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(pressure, "_MAX_MAPPINGS", tmp_path / "none")
    assert pressure.free_mappings() == sys.maxsize


def test_bound_and_unbound_neighbours_are_merged() -> None:
    bound = Bound(written_first=True)
    pressure.merge_mappings()
    assert count(bound.start, bound.end) <= 2  # its first page may be one mapping with what lies before it
    assert set(bound.memory[:]) == set(b"x")


def test_neighbours_that_were_bound_before_they_were_written_keep_their_content() -> None:
    bound = Bound(written_first=False)
    pressure.merge_mappings()
    assert set(bound.memory[:]) == set(b"x")


def test_a_list_that_cannot_be_read_merges_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    from ov_backend.memory import linux_memory

    def fail() -> None:
        raise OSError("planted")

    monkeypatch.setattr(linux_memory.Mappings, "read", fail)
    pressure.merge_mappings()


def of_evicted_networks(folder: str, merges: bool) -> int:
    """How many mappings a process has more after the second time that networks of four sizes were compiled and evicted."""
    engine, module, counts = Engine(Settings(precision="f32", cache_dir=folder, fallback="raise")), Deep(), []
    network = engine.network("net", module)
    for _ in range(2):
        for size in (8, 16, 24, 32):
            x = torch.randn(1, 16, size, size)
            assert torch.allclose(network(x), module(x), rtol=1e-3, atol=1e-4)
        engine.compiled.evict(lambda key, value: True)
        if merges:
            pressure.merge_mappings()
        counts.append(count())
    return counts[1] - counts[0]


class Deep(torch.nn.Sequential):
    """A network of many operators."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        block = (torch.nn.Conv2d(16, 16, 3, padding=1), torch.nn.GroupNorm(4, 16), torch.nn.SiLU())
        super().__init__(*(copy.deepcopy(each) for _ in range(12) for each in block))
        self.requires_grad_(False)


def test_evicted_networks_leave_fewer_mappings(tmp_path: Path) -> None:
    Bound(written_first=True)  # skips where nothing can be merged
    merged, split = (alone(of_evicted_networks, str(tmp_path / str(merges)), merges) for merges in (True, False))
    assert merged < split
