"""The store of compiled graphs in memory: which entries it evicts, and that their memory is then free."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from ov_backend.memory import available as memory
from ov_backend.memory import eviction as lru_module
from ov_backend.memory.eviction import DEFAULT_SHARE, MIB, CountLRU, MemoryLRU
from tests.helpers.alone import alone


def block(mebibytes: int) -> torch.Tensor:
    """A tensor of this size that is resident in memory."""
    return torch.ones(mebibytes * MIB // 4)


def test_the_least_recently_used_is_evicted_first() -> None:
    lru = MemoryLRU(budget_mb=30)
    for name in "abc":
        lru.put(name, name.upper(), 10 * MIB)
    assert lru.get("a") == "A"
    lru.put("d", "D", 10 * MIB)
    assert list(lru) == ["c", "a", "d"]
    assert lru.get("b") is None
    assert lru.evictions == 1


class Key:
    """Equal to others of its number; comparing one raises once, after ``left`` times."""

    left = -1

    def __init__(self, number: int) -> None:
        self.number = number

    def __hash__(self) -> int:
        return 0

    def __eq__(self, other: object) -> bool:
        Key.left -= 1
        if Key.left == 0:
            raise InterruptedError
        return isinstance(other, Key) and other.number == self.number


@pytest.mark.parametrize("comparison", range(1, 9))
@pytest.mark.parametrize("counts", [True, False])
def test_a_store_is_whole_after_a_signal_that_raises_while_keys_are_compared(counts: bool, comparison: int) -> None:
    lru: Any = CountLRU(4) if counts else MemoryLRU(1)
    size = () if counts else (MIB // 4,)
    for number in range(3):
        lru.put(Key(number), number, *size)
    Key.left = comparison
    with contextlib.suppress(InterruptedError):
        lru.put(Key(1), 1, *size)
    Key.left = -1
    for number in range(20):
        lru.put(Key(number), number, *size)
        assert lru.get(Key(number)) == number
    assert len(lru) == 4


def generations(seed: int, count: int = 100) -> Iterator[tuple[str, int, float]]:
    """The networks that mixed generations call: name, MiB and seconds to compile, as SD1.5's were measured.

    Two checkpoints and three sizes, a quarter of the pictures with a second pass at 1024x1024.
    """
    chance = random.Random(seed)
    for _ in range(count):
        checkpoint, size = chance.choice("AAAB"), chance.choice((512, 512, 512, 640, 768))
        sizes = (size, 1024) if chance.random() < 0.25 else (size,)
        yield f"text {checkpoint}", 500, 0.8
        yield from ((f"unet {checkpoint} {each}", 3300, 6.0 + each / 512) for each in sizes)
        yield f"vae {checkpoint} {sizes[-1]}", 300, 3.0


@pytest.mark.parametrize("budget", [4000, 9000, 16000])
def test_mixed_generations_compile_less_than_by_recency_alone(budget: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lru_module, "release_free_memory", lambda: None)
    compiles, seconds = {True: 0, False: 0}, {True: 0.0, False: 0.0}
    for weighs_cost in (True, False):
        for seed in range(5):
            lru = MemoryLRU(budget)
            for name, mebibytes, cost in generations(seed):
                if lru.get(name) is None:
                    compiles[weighs_cost], seconds[weighs_cost] = compiles[weighs_cost] + 1, seconds[weighs_cost] + cost
                    lru.put(name, name, mebibytes * MIB, seconds=cost if weighs_cost else 0.0)
                assert lru.bytes <= budget * MIB
    assert compiles[True] < compiles[False]
    assert seconds[True] < seconds[False]


def test_what_was_expensive_is_not_kept_for_ever() -> None:
    lru = MemoryLRU(budget_mb=20)
    lru.put("expensive", 1, 10 * MIB, seconds=5.0)
    for number in range(20):
        lru.put(number, number, 10 * MIB, seconds=1.0)
    assert "expensive" not in list(lru)


def test_the_newest_stays_even_if_it_alone_exceeds_the_budget() -> None:
    lru = MemoryLRU(budget_mb=1)
    lru.put("a", 1, 5 * MIB)
    lru.put("b", 2, 5 * MIB)
    assert list(lru) == ["b"]


def test_the_default_budget_is_a_share_of_the_machines_memory() -> None:
    assert MemoryLRU().budget == int(memory.total_memory() * DEFAULT_SHARE)
    assert 0 < memory.total_memory() <= psutil.virtual_memory().total


def test_room_is_made_until_enough_memory_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryLRU(100)
    for name in "abcd":
        store.put(name, name, 10)
    monkeypatch.setattr(lru_module, "available_memory", lambda: 100 - store.bytes)
    assert store.make_room(60) == 0
    assert (store.make_room(75), list(store), store.evictions) == (2, ["c", "d"], 2)
    assert (store.make_room(1000), list(store)) == (1, ["d"])  # the most recent one stays


def test_evicted_values_are_counted_and_gone() -> None:
    lru = MemoryLRU(budget_mb=100)
    for name in "abcd":
        lru.put(name, name, MIB)
    assert lru.evict(lambda key, value: value in "bd") == 2
    assert list(lru) == ["a", "c"]
    assert lru.peek("b") is None
    assert lru.evict(lambda key, value: False) == 0


def test_memory_is_measured_and_free_after_eviction() -> None:
    size, keys, growth = alone(_evict_a_block)
    assert 40 < size < 60
    assert keys == ["b"]
    assert abs(growth) < 16


def _evict_a_block() -> tuple[float, list[str], float]:
    """The measured MiB of a block of 48, the keys after a second block, and the MiB that this one added."""
    lru = MemoryLRU(budget_mb=70)
    value, size = memory.measured(lambda: block(48))
    lru.put("a", value, size)
    del value
    before = memory.resident_memory()
    value, size = memory.measured(lambda: block(48))
    lru.put("b", value, size)
    del value
    return size / MIB, list(lru), (memory.resident_memory() - before) / MIB


def test_pages_of_a_mapped_file_do_not_count_as_allocated(tmp_path: Path) -> None:
    path = tmp_path / "weights"
    path.write_bytes(b"\1" * (64 * MIB))

    def read() -> torch.Tensor:
        tensor = torch.from_file(str(path), shared=True, size=16 * MIB)
        assert float(tensor.sum()) != 0
        return tensor

    _, size = memory.measured(read)
    assert size < 16 * MIB


def test_the_number_of_values_is_bounded() -> None:
    lru = CountLRU(2)
    for name in "ab":
        lru.put(name, name.upper())
    assert lru.get("a") == "A"
    lru.put("c", "C")
    assert (lru.get("a"), lru.get("b"), lru.get("c"), len(lru)) == ("A", None, "C", 2)
    lru.clear()
    assert lru.get("a") is None


@pytest.mark.parametrize("text,limit", [("max\n", None), ("1073741824\n", 1 << 30), ("", None)])
def test_a_containers_limit_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, limit: int | None) -> None:
    path = tmp_path / "memory.max"
    path.write_text(text)
    monkeypatch.setattr(memory, "_CGROUP_USAGE", ((str(path), "absent"), (str(tmp_path / "absent"), "absent")))
    assert memory.total_memory() == (limit or psutil.virtual_memory().total)
