"""Compiled networks give way while something else takes the memory."""

from __future__ import annotations

import dataclasses
import gc
import threading
from collections.abc import Callable

import pytest

from ov_backend import Settings
from ov_backend.cache import lru
from ov_backend.cache.lru import MemoryLRU
from ov_backend.engine import pressure
from ov_backend.engine.engine import Engine
from ov_backend.engine.pressure import Pressure
from ov_backend.errors import OVBackendError
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
    for module in (pressure, lru):
        monkeypatch.setattr(module, "available_memory", free)


@pytest.fixture
def mappings(store: MemoryLRU, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Has a value in the store take a tenth of the memory mappings, and others the shares that it is called with.

    The second share is of mappings that can be merged.
    """

    def taken(by_others: float, split: float = 0.0) -> None:
        parts = {"others": by_others, "split": split}
        monkeypatch.setattr(pressure, "free_mappings", lambda: 1 - sum(parts.values()) - len(store) / 10)
        monkeypatch.setattr(pressure, "merge_mappings", lambda: parts.update(split=0.0))

    return taken


def test_memory_mappings_are_merged_before_a_network_is_evicted(store: MemoryLRU, mappings: Callable[..., None]) -> None:
    mappings(0.05, split=0.3)
    assert pressure.relieve_mappings(store) == 0
    assert len(store) == 4
    mappings(0.15, split=0.3)
    assert pressure.relieve_mappings(store) == 2


@pytest.mark.parametrize(("by_others", "evicted"), [(0.05, 0), (0.15, 2), (0.25, 3)])
def test_networks_make_room_before_memory_mappings_run_out(
    store: MemoryLRU, mappings: Callable[..., None], by_others: float, evicted: int
) -> None:
    mappings(by_others)
    assert pressure.relieve_mappings(store) == evicted
    assert list(store)[-1] == "d"


def test_nothing_is_compiled_where_hardly_a_memory_mapping_is_free(store: MemoryLRU, mappings: Callable[..., None]) -> None:
    mappings(0.8)
    with pytest.raises(OVBackendError, match=r"hardly any memory mappings.* are free.*vm\.max_map_count"):
        pressure.relieve_mappings(store)
    assert list(store) == ["d"]


def test_pytorch_answers_where_hardly_a_memory_mapping_is_free(
    strict: Callable[..., Settings], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, module = Engine(dataclasses.replace(strict(), fallback="pytorch")), Small()
    network = engine.network("net", module)
    monkeypatch.setattr(pressure, "free_mappings", lambda: 0.1)
    assert_right(network, module, *inputs())
    assert "memory mappings" in str(network.stats()["fallbacks"])
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
