"""The engine and the store together: whatever is on the disk, the picture is right and the next one is quick."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from ov_backend import Settings
from ov_backend.engine.engine import Engine
from ov_backend.memory import available, eviction
from ov_backend.model.compiler import open_store
from ov_backend.model.conversion import serialization
from ov_backend.store import key as cache_key
from ov_backend.store.entry_file import GRAPHS
from tests.helpers.small import Small, assert_right, engine_for, inputs

Strict = Callable[..., Settings]


def fill(settings: Settings) -> Path:
    """A store with the graph of one call; its file."""
    engine_for(settings, Small())(*inputs())
    (path,) = Path(str(settings.cache_dir)).glob(f"*{GRAPHS.suffix}")
    return path


def answers_after(settings: Settings, conversions: int) -> None:
    """Another engine gives the right answer, after a trace and so many conversions."""
    module = Small(seed=4)
    network = engine_for(settings, module)
    assert_right(network, module, *inputs())
    assert network.statistics.captures == 1
    assert network.statistics.graph_hits == 1 - conversions


def test_what_one_engine_stored_serves_the_next(strict: Strict) -> None:
    path = fill(strict())
    answers_after(strict(), conversions=0)
    assert path.stat().st_size < 100_000, "no weight is in it"


def _truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:1000])


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 4
    path.write_bytes(data)


def _foreign(path: Path) -> None:
    path.write_text("not a graph")


def _half_valid(path: Path) -> None:
    """An entry whose checksums are right and whose content is not a graph."""
    store = open_store(Settings(cache_dir=str(path.parent)))
    files = store.get(path.stem)
    assert files is not None
    store.put(path.stem, {**files, "model.xml": b"<net name='x' version='11'></net>"})


def _other_graph(path: Path) -> None:
    """A graph that is whole, of another shape, under this one's name."""
    store = open_store(Settings(cache_dir=str(path.parent)))
    engine_for(Settings(cache_dir=str(path.parent), precision="f32"), Small())(*inputs(9, 9))
    (other,) = [p for p in path.parent.glob(f"*{GRAPHS.suffix}") if p != path]
    files = store.get(other.stem)
    assert files is not None
    store.put(path.stem, files)
    other.unlink()


@pytest.mark.parametrize("damage", [_truncate, _flip, _foreign, _half_valid], ids=lambda f: f.__name__.strip("_"))
def test_a_damaged_entry_is_captured_again(
    strict: Strict, damage: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    path = fill(strict())
    damage(path)
    with caplog.at_level(logging.WARNING):
        answers_after(strict(), conversions=1)
    assert len([r for r in caplog.records if "stored graph" in r.getMessage()]) == 1
    answers_after(strict(), conversions=0)


def test_a_graph_under_another_ones_name_is_refused(strict: Strict) -> None:
    path = fill(strict())
    _other_graph(path)
    answers_after(strict(), conversions=1)


def test_an_upgrade_is_a_clean_miss(strict: Strict, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    fill(strict())
    monkeypatch.setattr(cache_key, "LOWERING_VERSION", cache_key.LOWERING_VERSION + 1)
    answers_after(strict(), conversions=1)
    assert not caplog.records
    assert len(open_store(strict()).entries()) == 2


def test_a_store_that_cannot_be_used_costs_a_capture_and_a_line(
    strict: Strict, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("mine")
    settings = strict(cache_dir=str(tmp_path / "file"))
    module = Small()
    network = engine_for(settings, module)
    for size in (8, 9):
        assert_right(network, module, *inputs(size, size))
    assert [r.getMessage() for r in caplog.records if "kept in memory only" in r.getMessage()].__len__() == 1
    assert (tmp_path / "file").read_text() == "mine"


def test_nothing_is_stored_where_caching_is_off(strict: Strict, tmp_path: Path) -> None:
    settings = strict(model_caching=False)
    engine_for(settings, Small())(*inputs())
    assert not Path(str(settings.cache_dir)).exists()


def test_a_stored_graph_holds_no_weight(strict: Strict) -> None:
    path = fill(strict())
    files = open_store(strict()).get(path.stem)
    assert files is not None
    graph = serialization.load(files)
    assert {spec.name for spec in graph.slots} >= {"matrix.weight", "table.weight", "offset"}
    held = sum(len(data) for name, data in files.items() if name == "model.bin")
    assert held < 4096
    for tensor in Small().state_dict().values():
        assert tensor.numpy().tobytes()[:32] not in b"".join(files.values())


def test_a_store_serves_two_sets_of_weights_in_one_process_each_its_own(strict: Strict) -> None:
    modules = [Small(seed=i) for i in range(3)]
    networks = [engine_for(strict(), module) for module in modules]
    for _ in range(2):
        for network, module in zip(networks, modules):
            assert_right(network, module, *inputs())
    assert [network.statistics.graph_hits for network in networks] == [0, 1, 1]
    outputs = [network(*inputs()) for network in networks]
    assert not torch.allclose(outputs[0], outputs[1])


def test_others_are_evicted_where_little_memory_is_free(
    strict: Strict, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    engine, modules = Engine(strict()), [Small(seed) for seed in range(3)]
    for free, held in ((1 << 40, 3), (0, 2)):  # the most recent one stays when the next is made
        for reader in (eviction, available):
            monkeypatch.setattr(reader, "available_memory", lambda free=free: free)
        engine.clear()
        caplog.clear()
        for number, module in enumerate(modules):
            assert_right(engine.network(f"net {number}", module), module, *inputs())
        assert len(engine.compiled) == held
        assert ("little memory is free" in caplog.text) == (held < 3)
    assert_right(engine.networks["net 0"], modules[0], *inputs())
