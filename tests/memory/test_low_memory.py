"""Low memory: compiled networks answer rightly while the weights lie on the disk, and see every change of them."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from ov_backend import Settings
from ov_backend.engine.engine import Engine, Network
from ov_backend.guards import content
from ov_backend.guards.weights import WeightsGuard
from ov_backend.memory import low_memory
from ov_backend.memory.regions import regions
from tests.guards.test_weights import CHANGES, fresh
from tests.helpers.disk import offloaded, on_disk
from tests.helpers.small import Small, assert_right, counts, inputs

Strict = Callable[..., Settings]


@pytest.fixture
def pair(strict: Strict, tmp_path: Path) -> tuple[Network, Small]:
    """A network with low memory, and its module, after one call."""
    on_disk(tmp_path)
    module = Small()
    network = Engine(strict(low_memory="on")).network("net", module)
    assert_right(network, module, *inputs())
    assert is_given_back(module)
    return network, module


def is_given_back(module: Small) -> bool:
    return all(regions.unwritten(each.weight) is not None for each in (module.table, module.matrix))


def test_weights_are_given_back_once_they_are_compiled(pair: tuple[Network, Small]) -> None:
    network, module = pair
    assert_right(network, module, *inputs())
    assert counts(network) == (1, 1)
    status = network.resources.low_memory.as_dict(network.resources.settings)
    assert status["setting"] == "on"
    assert int(status["offloaded_bytes"]) > 3 << 20
    assert status["reason"] == ""


def test_another_size_is_compiled_from_the_disk(pair: tuple[Network, Small]) -> None:
    network, module = pair
    assert_right(network, module, *inputs(16, 8))
    assert counts(network) == (2, 2)
    assert is_given_back(module)


def test_a_lora_is_seen_and_its_removal_compiles_nothing(pair: tuple[Network, Small]) -> None:
    network, module = pair
    before = module.matrix.weight.clone()
    module.matrix.weight.add_(0.5)
    assert_right(network, module, *inputs())
    assert counts(network) == (1, 2)
    assert is_given_back(module), "what was written is offloaded again"
    module.matrix.weight.copy_(before)
    assert_right(network, module, *inputs())
    assert counts(network) == (1, 2)
    assert is_given_back(module)


def test_a_single_element_written_past_all_counters_is_seen_at_once(pair: tuple[Network, Small]) -> None:
    network, module = pair
    module.matrix.weight.detach().numpy()[333, 333] = 1e4
    assert_right(network, module, *inputs())
    assert counts(network) == (1, 2)


def test_weights_that_are_given_back_are_not_read_to_check_them(
    pair: tuple[Network, Small], monkeypatch: pytest.MonkeyPatch
) -> None:
    network, _ = pair
    sizes: list[int] = []
    for name in ("probe", "hashed"):
        function = getattr(content, name)
        monkeypatch.setattr(content, name, lambda tensor, f=function: (sizes.append(tensor.nbytes), f(tensor))[1])
    network.begin_run()
    network(*inputs())
    assert sizes, "small weights are read"
    assert max(sizes) < 1 << 18
    assert counts(network) == (1, 1)


def test_pytorch_goes_on_with_the_weights(pair: tuple[Network, Small], tmp_path: Path) -> None:
    _, module = pair
    assert torch.equal(module(*inputs()), Small()(*inputs()))


def test_all_weights_are_read_back_for_more_precision(strict: Strict, tmp_path: Path) -> None:
    on_disk(tmp_path)
    module = Small()
    module.scale = 1e30
    with torch.no_grad():
        module.convolution.weight.mul_(1e9)
    network = Engine(strict(low_memory="on", precision="f32")).network("net", module)
    network(*inputs())
    assert network.resources.low_memory.reason == ""


def test_two_networks_of_one_module_share_what_was_given_back(pair: tuple[Network, Small], strict: Strict) -> None:
    _, module = pair
    other = Engine(strict(low_memory="off")).network("other", module)
    assert_right(other, module, *inputs())
    module.table.weight.add_(1)
    assert_right(other, module, *inputs())
    assert counts(other)[1] == 2


@pytest.mark.parametrize("change", CHANGES, ids=lambda f: f.__name__.strip("_"))
def test_every_change_of_given_back_weights_is_seen(change: Callable[[Small], None], tmp_path: Path) -> None:
    module = Small()
    state = WeightsGuard(module)
    before = state.digest
    assert offloaded(module, tmp_path) == 2
    assert state.check()
    assert state.digest == before
    change(module)
    assert not state.check()
    assert state.digest == fresh(module) != before


def test_a_change_before_the_giving_back_is_seen_after_it(tmp_path: Path) -> None:
    module = Small()
    state = WeightsGuard(module)
    module.matrix.weight.detach().numpy()[333, 333] = 5.0  # where no probe is
    assert offloaded(module, tmp_path) == 2
    assert not state.check()
    assert state.digest == fresh(module)


def test_memory_that_was_replaced_by_other_memory_is_read_again(tmp_path: Path) -> None:
    module = Small()
    state = WeightsGuard(module)
    offloaded(module, tmp_path)
    assert state.check()
    module.matrix.weight.data = torch.empty(0)
    gc.collect()
    module.matrix.weight.data = torch.zeros(640, 512)  # may lie at the same address, where no page was written
    assert not state.check()
    assert state.digest == fresh(module)


def test_a_write_between_two_guards_is_seen_by_both(tmp_path: Path) -> None:
    module = Small()
    states = [WeightsGuard(module), WeightsGuard(module)]
    offloaded(module, tmp_path)
    assert states[0].check()
    module.matrix.weight.detach().numpy()[333, 333] = 5.0
    assert [state.check() for state in states] == [False, False]
    module.matrix.weight.detach().numpy()[0, 0] = 5.0  # the memory is ordinary now, and this is a probe
    assert [state.check() for state in states] == [False, False]
    assert [state.digest for state in states] == [fresh(module)] * 2


def test_where_it_is_impossible_the_weights_stay_and_the_log_says_so_once(
    strict: Strict, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    module = Small()
    (tmp_path / "file").write_text("")
    network = Engine(strict(low_memory="on", model_caching=False, cache_dir=str(tmp_path / "file" / "x"))).network("net", module)
    with caplog.at_level(logging.WARNING):
        assert_right(network, module, *inputs())
        assert_right(network, module, *inputs(16, 8))
    sentences = [record.message for record in caplog.records if "stay in memory" in record.message]
    assert len(sentences) == 1
    assert network.resources.low_memory.reason == sentences[0]
    assert not any(regions.of(each) for each in module.parameters())


@pytest.mark.parametrize(
    "changes,available,expected",
    [
        ({"low_memory": "off"}, 0, False),
        ({"low_memory": "on"}, 100, True),
        ({}, 24, True),
        ({}, 26, False),
        ({}, 34, False),
        ({"model_caching": False}, 24, False),
        ({"device": "AUTO", "low_memory": "on"}, 0, False),
    ],
)
def test_auto_looks_at_what_is_free(
    strict: Strict, monkeypatch: pytest.MonkeyPatch, changes: dict[str, object], available: int, expected: bool
) -> None:
    monkeypatch.setattr(low_memory, "total_memory", lambda: 100)
    monkeypatch.setattr(low_memory, "available_memory", lambda: available)
    assert low_memory.LowMemory().is_wanted(strict(**changes), 0) == expected


def test_auto_counts_what_the_compile_will_take(strict: Strict, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(low_memory, "total_memory", lambda: 100)
    monkeypatch.setattr(low_memory, "available_memory", lambda: 34)
    assert low_memory.LowMemory().is_wanted(strict(), 10)
    assert not low_memory.LowMemory().is_wanted(strict(), 9)
