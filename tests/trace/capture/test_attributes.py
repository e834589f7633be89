"""Attributes that a forward sets: the one that is there already changes nothing, and a new module is nobody else's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from ov_backend import Settings
from tests.helpers.readers import X, assert_eager
from tests.helpers.small import engine_for

Strict = Callable[..., Settings]
KEPT: list[torch.nn.Module] = []


class Setting(torch.nn.Module):
    """Calls a function of itself and its input, whose result its linear layer takes."""

    def __init__(self, function: Callable[[Any, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.linear, self.function = torch.nn.Linear(4, 4), function
        self.mean, self.other = torch.rand(1, 4), torch.rand(1, 4)
        self.register_buffer("scale", torch.rand(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(self.function(self, x))


def _its_mean_in_the_inputs_dtype(module: Setting, x: torch.Tensor) -> torch.Tensor:
    module.mean = module.mean.type_as(x)  # as SwinIR, HAT, DAT and others do
    return x - module.mean


def _a_buffer_on_the_inputs_device(module: Any, x: torch.Tensor) -> torch.Tensor:
    module.scale = module.scale.to(x.device).contiguous()
    return x * module.scale


def _by_a_new_module(module: Setting, x: torch.Tensor) -> torch.Tensor:
    return torch.nn.Threshold(0.1, 0.2)(x)


def _by_a_new_module_that_holds_an_old_one(module: Setting, x: torch.Tensor) -> torch.Tensor:
    return torch.nn.Sequential(torch.nn.ReLU(), module.linear)(x)


def _another_value(module: Setting, x: torch.Tensor) -> torch.Tensor:
    module.mean = module.mean * 1.5
    return x - module.mean


def _exchanged(module: Setting, x: torch.Tensor) -> torch.Tensor:
    module.mean, module.other = module.other.type_as(x), module.mean.type_as(x)
    return x - module.mean


def _a_pair_that_grows(module: Any, x: torch.Tensor) -> torch.Tensor:
    kept, other = getattr(module, "pair", (x, x))
    module.pair = (torch.cat((kept, x)), other * 2)  # as a network that keeps keys and values does
    return module.pair[0][-3:] + module.pair[0].mean(0) + module.pair[1]


def _a_new_module_that_stays(module: Setting, x: torch.Tensor) -> torch.Tensor:
    module.kept = torch.nn.Threshold(0.1, 0.2)
    return module.kept(x)


def _a_new_module_in_a_list(module: Setting, x: torch.Tensor) -> torch.Tensor:
    KEPT.append(torch.nn.Threshold(0.1 * len(KEPT), 0.2))
    return KEPT[-1](x)


def _an_old_module_by_a_new_one(module: Setting, x: torch.Tensor) -> torch.Tensor:
    holder: Any = torch.nn.Sequential(module.linear)
    holder[0].calls = getattr(module.linear, "calls", 0) + 1
    return x * float(module.linear.calls)


@pytest.mark.parametrize(
    "function",
    [
        _its_mean_in_the_inputs_dtype,
        _a_buffer_on_the_inputs_device,
        _by_a_new_module,
        _by_a_new_module_that_holds_an_old_one,
    ],
)
def test_what_changes_nothing_is_no_effect(strict: Strict, function: Callable[..., torch.Tensor]) -> None:
    module = Setting(function)
    network = engine_for(strict(), module)
    assert_eager(network, module)
    assert network.statistics.calls
    with torch.no_grad():
        module.mean += 1
        module.scale += 1
    assert_eager(network, module)


@pytest.mark.parametrize(
    "function",
    [
        _another_value,
        _exchanged,
        _a_pair_that_grows,
        _a_new_module_that_stays,
        _a_new_module_in_a_list,
        _an_old_module_by_a_new_one,
    ],
)
def test_what_is_another_thing_afterwards_stays_in_pytorch(strict: Strict, function: Callable[..., torch.Tensor]) -> None:
    results = []
    for accelerated in (True, False):
        torch.manual_seed(0)
        KEPT.clear()
        module = Setting(function)
        network = engine_for(strict(fallback="pytorch"), module)
        results.append([(network if accelerated else module)(X) for _ in range(3)])
        assert network.statistics.calls == 0
    torch.testing.assert_close(results[0], results[1])
