"""Compiled networks give way while something else takes the memory."""

from __future__ import annotations

import dataclasses
import gc
import threading
from collections.abc import Callable

import pytest

from ov_backend import Settings
from ov_backend.core.errors import DeviceError
from ov_backend.engine.engine import Engine
from ov_backend.memory import eviction, pressure
from ov_backend.memory.eviction import MemoryLRU
from ov_backend.memory.pressure import Pressure
from tests.helpers.lifetimes import eventually
from tests.helpers.small import Small, assert_right, inputs


@pytest.fixture
def store() -> MemoryLRU:
    """Holds four values of 10 bytes."""
    store = MemoryLRU(100)
    for name in "abcd":
        store.put(name, name, 10)
    return store


def machine(monkeypatch: pytest.MonkeyPatch, free: Callable[[], int]) -> None:
    """A machine with 1,600 bytes of memory."""
    monkeypatch.setattr(pressure, "total_memory", lambda: 1600)
    for module in (pressure, eviction):
        monkeypatch.setattr(module, "available_memory", free)


@pytest.fixture
def mappings(store: MemoryLRU, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Says how many memory mappings are free without the store, whose values take 2,000 each, and how many more can be merged."""

    def leave(free: int, split: int = 0) -> None:
        parts = {"split": split}
        monkeypatch.setattr(pressure, "free_mappings", lambda: free - parts["split"] - 2000 * len(store))
        monkeypatch.setattr(pressure, "merge_mappings", lambda: parts.update(split=0))

    return leave


@pytest.mark.parametrize(("free", "split", "held"), [(18_000, 0, 4), (18_000, 9_000, 4), (17_000, 0, 1), (21_000, 9_000, 4)])
def test_mappings_are_merged_and_then_networks_make_room(
    store: MemoryLRU, mappings: Callable[..., None], caplog: pytest.LogCaptureFixture, free: int, split: int, held: int
) -> None:
    mappings(free, split)
    pressure.relieve_mappings(store)
    assert len(store) == held
    assert ("memory mappings" in caplog.text) == (held < 4)


def test_only_as_many_networks_make_room_as_are_needed(store: MemoryLRU, mappings: Callable[..., None]) -> None:
    store.put("e", "e", 10)
    mappings(19_500)
    pressure.relieve_mappings(store)
    assert list(store) == ["e"]
    store.put("f", "f", 10)
    mappings(20_500)
    pressure.relieve_mappings(store)
    assert list(store) == ["e", "f"]


def test_nothing_is_compiled_where_hardly_a_memory_mapping_is_free(store: MemoryLRU, mappings: Callable[..., None]) -> None:
    mappings(6_000)
    with pytest.raises(DeviceError, match=r"hardly any memory mappings.* are free.*vm\.max_map_count"):
        pressure.relieve_mappings(store)
    assert list(store) == ["d"]


def test_pytorch_answers_where_hardly_a_memory_mapping_is_free(
    strict: Callable[..., Settings], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, module = Engine(dataclasses.replace(strict(), fallback="pytorch")), Small()
    network = engine.network("net", module)
    monkeypatch.setattr(pressure, "free_mappings", lambda: 100)
    assert_right(network, module, *inputs())
    assert "memory mappings" in str(network.stats()["fallbacks"])
    assert network.stats()["captures"] == 0
    monkeypatch.undo()
    assert_right(network, module, *inputs())
    assert network.stats()["compiles"] == 1


@pytest.mark.parametrize(("taken", "evicted"), [(0, 0), (1460, 0), (1461, 3)])
def test_nothing_is_evicted_before_memory_is_short(
    store: MemoryLRU, monkeypatch: pytest.MonkeyPatch, taken: int, evicted: int
) -> None:
    machine(monkeypatch, lambda: 1600 - store.bytes - taken)
    assert pressure.relieve(store) == evicted
    assert list(store)[-1] == "d"


def test_a_thread_watches_as_long_as_there_is_a_store(store: MemoryLRU, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pressure, "_INTERVAL", 0.01)
    taken = 0
    machine(monkeypatch, lambda: 1600 - taken)
    watching = Pressure(store)
    watching.watch()
    thread = watching._thread
    watching.watch()
    assert watching._thread is thread
    assert len(store) == 4
    taken = 1590
    assert eventually(lambda: list(store) == ["d"])
    assert thread is not None
    assert thread.is_alive()


def test_the_thread_ends_with_its_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pressure, "_INTERVAL", 0.01)
    store = MemoryLRU(100)
    watching = Pressure(store)
    watching.watch()
    thread = watching._thread
    assert thread is not None
    del store
    gc.collect()
    assert eventually(lambda: not thread.is_alive())


def test_an_engine_watches_what_it_compiles(strict: Callable[..., Settings]) -> None:
    engine, module = Engine(strict()), Small()
    assert_right(engine.network("net", module), module, *inputs())
    thread = engine.resources.pressure._thread
    assert thread in threading.enumerate()
