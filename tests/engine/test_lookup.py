"""Which compiled network answers for which weights: none is served for others, and none is compiled twice for the same."""

from __future__ import annotations

import copy
import gc
import logging
import threading
import weakref
from collections.abc import Callable

import pytest
import torch

from ov_backend import Settings
from ov_backend.engine.engine import Engine
from tests.helpers.lifetimes import eventually
from tests.helpers.small import Small, assert_right, counts, engine_for, inputs

Strict = Callable[..., Settings]


def test_a_change_inside_one_weight_is_seen(strict: Strict) -> None:
    module = Small()
    network = engine_for(strict(), module)
    assert_right(network, module, *inputs())
    with torch.no_grad():
        module.convolution.weight[3, 2, 1, 1] += 5
    assert_right(network, module, *inputs())
    module.matrix.weight.data[:, 300] += 5
    module.table.weight.data.mul_(3)
    assert_right(network, module, *inputs())
    assert counts(network) == (1, 3)


def test_a_change_of_weights_costs_one_compile_and_a_return_nothing(strict: Strict) -> None:
    module = Small()
    network = engine_for(strict(), module)
    state = copy.deepcopy(module.state_dict())
    assert_right(network, module, *inputs())
    for _ in range(3):
        with torch.no_grad():
            module.matrix.weight.add_(0.5)  # a LoRA comes
        assert_right(network, module, *inputs())
        module.load_state_dict(state)  # and goes
        assert_right(network, module, *inputs())
    assert counts(network) == (1, 2)
    assert network.statistics.graph_hits == 0
    assert network.statistics.seconds["convert"] > 0


def test_what_is_compiled_survives_its_model_where_a_host_asks_for_it(strict: Strict) -> None:
    for keeps, compiles in ((True, 0), (False, 1)):
        engine = Engine(strict(model_caching=False), keeps_unloaded=keeps)
        module = Small()
        assert_right(engine.network("net", module), module, *inputs())
        engine.release("net")
        del module
        gc.collect()
        engine.evict_dead()
        again = Small()
        network = engine.network("net", again)
        assert_right(network, again, *inputs())
        assert network.statistics.compiles == compiles


def test_what_reads_its_weights_in_place_is_not_served_from_elsewhere(strict: Strict) -> None:
    """OpenVINO reads large tables where they lie: content that returns in other memory is not what was compiled."""
    module = Small()
    network = engine_for(strict(), module)
    backup = module.table.weight.detach().clone()
    original = module.table.weight
    assert_right(network, module, *inputs())
    with torch.no_grad():
        original.mul_(3)
    assert_right(network, module, *inputs())
    module.table.weight = torch.nn.Parameter(backup)
    assert_right(network, module, *inputs())
    with torch.no_grad():
        original.mul_(7)
    assert_right(network, module, *inputs())
    assert network.statistics.captures == 1


@pytest.mark.parametrize("how", ["assign", "data"])
def test_other_memory_under_the_same_names(strict: Strict, how: str) -> None:
    module = Small()
    network = engine_for(strict(), module)
    assert_right(network, module, *inputs())
    other = Small(seed=5).state_dict()
    if how == "assign":
        module.load_state_dict(other, assign=True)
    else:
        for name, parameter in module.named_parameters():
            parameter.data = other[name].clone()
    gc.collect()
    for size in (8, 12):
        assert_right(network, module, *inputs(size, size))
    held = {"assign": 2, "data": 3}[how]
    assert network.stats()["held"] == held, "what was compiled for weights that are gone is gone, and kept for those that changed"


def test_tied_weights_follow_each_other(strict: Strict) -> None:
    module = torch.nn.Sequential(torch.nn.Linear(600, 600), torch.nn.Tanh(), torch.nn.Linear(600, 600))
    module[2].weight = module[0].weight
    network = engine_for(strict(), module)
    x = torch.randn(2, 600)
    assert_right(network, module, x)
    with torch.no_grad():
        module[2].weight.add_(0.01)
    assert_right(network, module, x)
    module[2].weight = torch.nn.Parameter(torch.randn(600, 600))
    assert_right(network, module, x)


def test_weights_and_inputs_of_inference_mode(strict: Strict) -> None:
    with torch.inference_mode():
        module = Small()
        network = engine_for(strict(), module)
        assert_right(network, module, *inputs())
        module.matrix.weight.mul_(2)
        assert_right(network, module, *inputs())
    assert_right(network, module, *inputs())
    assert counts(network) == (1, 2)


def test_weights_that_go_to_meta_and_come_back(strict: Strict, caplog: pytest.LogCaptureFixture) -> None:
    module = Small()
    network = engine_for(strict(fallback="pytorch"), module)
    state = copy.deepcopy(module.state_dict())
    storage = torch.multiprocessing.reductions.StorageWeakRef(module.table.weight.untyped_storage())
    assert_right(network, module, *inputs())
    module.to("meta")
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            with pytest.raises((RuntimeError, NotImplementedError)):  # as the model itself does
                network(*inputs())
    said = [record.message for record in caplog.records if "is on meta" in record.message]
    assert len(said) == 1
    assert sum(network.statistics.fallbacks.values()) == 2
    gc.collect()
    assert storage.expired(), "the weights that the model has released are kept alive"
    module.load_state_dict(state, assign=True)
    assert_right(network, module, *inputs())
    assert sum(network.statistics.fallbacks.values()) == 2
    assert network.statistics.captures == 1


def test_a_model_that_is_gone_is_not_kept_alive(strict: Strict) -> None:
    engine = Engine(strict())
    module = Small()
    network = engine.network("net", module)
    assert_right(network, module, *inputs())
    weak = weakref.ref(module)
    storage = torch.multiprocessing.reductions.StorageWeakRef(module.table.weight.untyped_storage())
    engine.release("net")
    assert len(engine.compiled) == 1
    del module, network
    gc.collect()
    assert weak() is None
    assert eventually(lambda: storage.expired() and not len(engine.compiled))


def test_a_compile_evicts_what_lay_in_memory_that_its_model_has_left(strict: Strict) -> None:
    engine = Engine(strict())
    gone, module = Small(seed=1), Small(seed=2)
    assert_right(engine.network("gone", gone), gone, *inputs())
    for thread in threading.enumerate():  # garbage of the call may have begun one, which would evict before the compile does
        if thread.name == "ov_backend evict":
            thread.join()
    storage = torch.multiprocessing.reductions.StorageWeakRef(gone.table.weight.untyped_storage())
    gone.table.weight.data = gone.table.weight.data.clone()
    assert not storage.expired()
    assert_right(engine.network("net", module), module, *inputs())
    gc.collect()
    assert storage.expired()


def test_another_model_at_the_same_address(strict: Strict) -> None:
    engine = Engine(strict())
    for seed in range(8):
        module = Small(seed)
        assert_right(engine.network("net", module), module, *inputs())
        engine.release("net")
        del module
        gc.collect()
    assert len(engine.compiled) <= 1


def test_a_large_int64_input_stays_in_pytorch(strict: Callable[..., Settings]) -> None:
    class Sum(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.sum()

    network = engine_for(strict(fallback="pytorch"), Sum())
    for numbers in ([1, 2, 3], [2**24, 1, 1], [3, 2, 1]):
        assert network(torch.tensor(numbers)) == sum(numbers)
    ((reason, count),) = network.statistics.fallbacks.items()
    assert ("wide_integers" in reason, count) == (True, 1)
