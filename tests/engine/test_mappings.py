"""Memory mappings are counted, and neighbours of which OpenVINO's CPU device has bound one become one again."""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
from pathlib import Path

import pytest

from ov_backend import Settings
from ov_backend.engine import mappings
from ov_backend.engine.engine import Engine
from tests.helpers.alone import alone
from tests.helpers.small import Small, assert_right, inputs

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux bounds memory mappings")

PAGES = 64
#: Of <linux/mempolicy.h>: memory comes from the nodes of a mask.
BIND = 2


def count() -> int:
    """The mappings of this process."""
    return Path("/proc/self/maps").read_bytes().count(b"\n")


@pytest.fixture
def bound() -> mmap.mmap:
    """Memory full of "x", of which every other page is bound to the first NUMA node."""
    from ov_backend import linux_memory

    if not Path("/proc/self/numa_maps").exists() or not mappings._has_one_node():
        pytest.skip("needs a system that knows NUMA, with one node")
    memory = mmap.mmap(-1, PAGES * mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.write(b"x" * PAGES * mmap.PAGESIZE)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    number, mask = linux_memory._MBIND[os.uname().machine], ctypes.c_ulong(1)
    for page in range(1, PAGES, 2):
        start = ctypes.c_ulong(address + page * mmap.PAGESIZE)
        assert not ctypes.CDLL(None).syscall(number, start, ctypes.c_ulong(mmap.PAGESIZE), BIND, ctypes.byref(mask), 64, 0)
    return memory


def test_memory_mappings_are_counted() -> None:
    before = mappings.free_mappings()
    maps = [mmap.mmap(-1, 4096, prot=mmap.PROT_READ | (i % 2) * mmap.PROT_WRITE) for i in range(2000)]
    allowed = int(Path("/proc/sys/vm/max_map_count").read_text())
    assert before - mappings.free_mappings() == pytest.approx(len(maps) / allowed, rel=0.1)


def test_a_system_without_a_bound_has_all_of_them_free(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(mappings, "_MAX_MAPPINGS", tmp_path / "none")
    assert mappings.free_mappings() == 1


def test_bound_and_unbound_neighbours_are_merged(bound: mmap.mmap) -> None:
    before = count()
    mappings.merge_mappings()
    assert before - count() >= PAGES - 8  # others of this process may come and go
    assert set(bound[:]) == set(b"x")


def test_with_several_nodes_the_policy_stays(bound: mmap.mmap, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "online").write_text("0-1\n")
    monkeypatch.setattr(mappings, "_NODES", tmp_path / "online")
    before = count()
    mappings.merge_mappings()
    assert abs(before - count()) < 8


def of_evicted_networks(folder: str) -> list[int]:
    """Mappings of a process after networks of three sizes were compiled and evicted, three times."""
    engine, module, counts = Engine(Settings(precision="f32", cache_dir=folder, fallback="raise")), Small(), []
    network = engine.network("net", module.requires_grad_(False))
    for i in range(3):
        for size in (8, 16, 24):
            assert_right(network, module, *inputs(size + i, size))
        engine.compiled.evict(lambda key, value: True)
        mappings.merge_mappings()
        counts.append(count())
    return counts


def test_evicted_networks_leave_no_mappings(tmp_path: Path) -> None:
    first, _, last = alone(of_evicted_networks, str(tmp_path))
    assert last - first < 40, (first, last)
