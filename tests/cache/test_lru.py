"""The store of compiled graphs in memory: what it lets go of, and that the memory is then free."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest
import torch

from ov_backend.cache import memory
from ov_backend.cache.lru import DEFAULT_SHARE, MIB, CountLRU, MemoryLRU
from tests.helpers.alone import alone


def block(mebibytes: int) -> torch.Tensor:
    """Memory that is really there."""
    return torch.ones(mebibytes * MIB // 4)


def test_the_least_recently_used_goes_first() -> None:
    held = MemoryLRU(budget_mb=30)
    for name in "abc":
        held.put(name, name.upper(), 10 * MIB)
    assert held.get("a") == "A"
    held.put("d", "D", 10 * MIB)
    assert list(held) == ["c", "a", "d"]
    assert held.get("b") is None
    assert held.evictions == 1


def test_the_newest_stays_even_alone_over_the_budget() -> None:
    held = MemoryLRU(budget_mb=1)
    held.put("a", 1, 5 * MIB)
    held.put("b", 2, 5 * MIB)
    assert list(held) == ["b"]


def test_no_budget_is_the_stated_share_of_the_machine() -> None:
    assert MemoryLRU().budget == int(memory.total_memory() * DEFAULT_SHARE)
    assert 0 < memory.total_memory() <= psutil.virtual_memory().total


def test_what_is_dropped_is_counted_and_gone() -> None:
    held = MemoryLRU(budget_mb=100)
    for name in "abcd":
        held.put(name, name, MIB)
    assert held.evict(lambda key, value: value in "bd") == 2
    assert list(held) == ["a", "c"]
    assert held.peek("b") is None
    assert held.evict(lambda key, value: False) == 0


def test_memory_is_measured_and_free_after_eviction() -> None:
    size, held, grown = alone(_evict_a_block)
    assert 40 < size < 60
    assert held == ["b"]
    assert abs(grown) < 16


def _evict_a_block() -> tuple[float, list[str], float]:
    """The measured MiB of a block of 48, what is held after a second one, and the MiB that took beyond the first."""
    held = MemoryLRU(budget_mb=70)
    value, size = memory.measured(lambda: block(48))
    held.put("a", value, size)
    del value
    before = memory.resident_memory()
    value, size = memory.measured(lambda: block(48))
    held.put("b", value, size)
    del value
    return size / MIB, list(held), (memory.resident_memory() - before) / MIB


def test_pages_of_a_mapped_file_are_nobodys_allocation(tmp_path: Path) -> None:
    path = tmp_path / "weights"
    path.write_bytes(b"\1" * (64 * MIB))

    def look() -> torch.Tensor:
        tensor = torch.from_file(str(path), shared=True, size=16 * MIB)
        assert float(tensor.sum()) != 0
        return tensor

    _, size = memory.measured(look)
    assert size < 16 * MIB


def test_a_count_bounds_what_can_be_had_again() -> None:
    held = CountLRU(2)
    for name in "ab":
        held.put(name, name.upper())
    assert held.get("a") == "A"
    held.put("c", "C")
    assert (held.get("a"), held.get("b"), held.get("c"), len(held)) == ("A", None, "C", 2)
    held.clear()
    assert held.get("a") is None


@pytest.mark.parametrize("text,limit", [("max\n", None), ("1073741824\n", 1 << 30), ("", None)])
def test_a_containers_limit_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, limit: int | None) -> None:
    path = tmp_path / "memory.max"
    path.write_text(text)
    monkeypatch.setattr(memory, "_CGROUP_LIMITS", (str(path), str(tmp_path / "absent")))
    assert memory.total_memory() == (limit or psutil.virtual_memory().total)
