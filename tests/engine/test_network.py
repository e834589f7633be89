"""What a network does with calls that OpenVINO should not answer: it says why, and PyTorch answers."""

from __future__ import annotations

import os
import signal
import types
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode

import ov_backend
from ov_backend import Settings
from tests.helpers.small import Small, assert_right, engine_for, inputs

Strict = Callable[..., Settings]


class Giving(torch.nn.Module):
    """Returns what it is told to compute of x."""

    def __init__(self, make: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.make = make

    def forward(self, x: torch.Tensor) -> Any:
        return self.make(x * 2)


def test_weights_that_ask_for_gradients_get_them(strict: Strict) -> None:
    module = torch.nn.Linear(3, 3)
    network = engine_for(strict(fallback="pytorch"), module)
    with torch.enable_grad():
        network(torch.ones(2, 3)).sum().backward()
    assert module.weight.grad is not None
    assert torch.equal(module.weight.grad, torch.full((3, 3), 2.0))
    assert "ask for gradients" in next(iter(network.statistics.fallbacks))
    network(torch.ones(2, 3))
    assert network.statistics.calls == 1, "without gradients OpenVINO answers"


def test_keys_that_are_no_strings_come_back_as_they_are(strict: Strict) -> None:
    network = engine_for(strict(fallback="pytorch"), Giving(lambda y: {1: y, "b": y}))
    assert list(network(torch.ones(2))) == [1, "b"]


def test_a_dict_with_a_default_keeps_it(strict: Strict) -> None:
    network = engine_for(strict(fallback="pytorch"), Giving(lambda y: defaultdict(list, a=y)))
    result = network(torch.ones(2))
    assert result["new"] == []
    assert torch.equal(result["a"], torch.full((2,), 2.0))


def test_a_number_that_changes_at_every_call_is_no_graph_each(strict: Strict) -> None:
    class Power(torch.nn.Module):
        def forward(self, x: torch.Tensor, exponent: float) -> torch.Tensor:
            return x**exponent

    network = engine_for(strict(fallback="pytorch"), Power())
    x = torch.full((2,), 1.5)
    for number in range(30):
        exponent = 1 + number / 10
        torch.testing.assert_close(network(x, exponent), x**exponent)
    assert network.statistics.compiles <= 8  # two where the number is an input


def test_a_scripted_part_answers_in_pytorch(strict: Strict) -> None:
    class Outer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = torch.jit.script(torch.nn.Linear(3, 3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(x) + 1

    module = Outer()
    network = engine_for(strict(fallback="pytorch"), module)
    torch.testing.assert_close(network(torch.ones(2, 3)), module(torch.ones(2, 3)))
    assert list(network.statistics.fallbacks) == ["inner is scripted by torch.jit, which keeps no code that could be read"]


def test_a_network_with_a_scripted_part_can_be_accelerated(strict: Strict) -> None:
    module = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.jit.script(torch.nn.Linear(3, 3)))
    right = module(torch.ones(2, 3))
    accelerator = ov_backend.accelerate({"net": module}, strict(fallback="pytorch"))
    torch.testing.assert_close(module(torch.ones(2, 3)), right)
    accelerator.restore()


def test_a_failure_of_ours_costs_no_answer(strict: Strict, monkeypatch: pytest.MonkeyPatch) -> None:
    module = Small()
    network = engine_for(strict(fallback="pytorch"), module)

    def fail(*_: object) -> None:
        raise KeyError("planted")

    of_package = types.FunctionType(fail.__code__, {"__name__": "ov_backend.planted", "KeyError": KeyError})
    monkeypatch.setattr(network._lookup, "find", of_package)
    assert torch.equal(network(*inputs()), module(*inputs()))
    assert list(network.statistics.fallbacks) == ["OpenVINO failed: KeyError: 'planted'"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_child_answers(strict: Strict) -> None:
    module = Small()
    network = engine_for(strict(fallback="pytorch"), module)
    assert_right(network, module, *inputs())
    child = os.fork()
    if not child:
        torch.set_num_threads(1)
        right = torch.equal(network(*inputs()), module(*inputs()))
        os._exit(0 if right and "forked" in next(iter(network.statistics.fallbacks)) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_network_made_in_a_forked_child_stays_in_pytorch(strict: Strict) -> None:
    module = Small()
    assert_right(engine_for(strict(fallback="pytorch"), module), module, *inputs())
    child = os.fork()
    if not child:
        signal.alarm(60)  # OpenVINO would wait for threads that stayed behind
        torch.set_num_threads(1)
        network = engine_for(strict(fallback="pytorch"), module)
        right = torch.equal(network(*inputs()), module(*inputs()))
        os._exit(0 if right and "forked" in next(iter(network.statistics.fallbacks)) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


class Doubling(TorchFunctionMode):
    """Every linear layer's answer, twice."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        return result * 2 if func is torch.nn.functional.linear else result


def test_a_mode_that_changes_operators_leaves_the_call_to_pytorch(strict: Strict) -> None:
    module = Small()
    network = engine_for(strict(fallback="pytorch"), module)
    with torch.no_grad():
        torch.testing.assert_close(network(*inputs()), module(*inputs()))
        with Doubling():
            torch.testing.assert_close(network(*inputs()), module(*inputs()))
    assert list(network.statistics.fallbacks) == ["Doubling is active, which sees every operator"]
