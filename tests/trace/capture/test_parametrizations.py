"""``torch.nn.utils.parametrize.cached()``: in its context PyTorch computes a parametrized weight once, and keeps it."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch._subclasses import FakeTensor
from torch.nn.utils import parametrize

from ov_backend import Settings
from tests.helpers.readers import X, assert_eager
from tests.helpers.small import engine_for

Strict = Callable[..., Settings]


class Scaled(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = 2.0

    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        return weight * self.scale


def parametrized() -> torch.nn.Sequential:
    module = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh())
    parametrize.register_parametrization(module[0], "weight", Scaled())
    return module.requires_grad_(False)


def test_a_kept_weight_stays(strict: Strict) -> None:
    module = parametrized()
    network = engine_for(strict(fallback="pytorch"), module)
    original, scaled = module[0].parametrizations.weight.original, module[0].parametrizations.weight[0]
    assert_eager(network, module)
    with parametrize.cached():
        before = network(X)
        original.mul_(3)
        torch.testing.assert_close(network(X), before)
        scaled.scale = 5.0
        torch.testing.assert_close(network(X), before)
        assert_eager(network, module)
        assert not any(isinstance(kept, FakeTensor) for kept in parametrize._cache.values())
    assert network.statistics.calls == 1
    assert "parametrize.cached()" in network.statistics.last_reason
    assert_eager(network, module)
    assert not torch.equal(network(X), before)
    assert network.statistics.calls == 3


def test_what_was_kept_before_the_first_call_counts(strict: Strict) -> None:
    module = parametrized()
    network = engine_for(strict(fallback="pytorch"), module)
    with parametrize.cached():
        before = module(X)
        module[0].parametrizations.weight.original.mul_(3)
        torch.testing.assert_close(network(X), before)
    assert_eager(network, module)
    assert network.statistics.calls == 1


def test_a_network_without_parametrizations_is_answered_by_openvino(strict: Strict) -> None:
    module = torch.nn.Linear(4, 4).requires_grad_(False)
    network = engine_for(strict(), module)
    with parametrize.cached():
        assert_eager(network, module)
    assert_eager(network, module)
    assert network.statistics.calls == 2
