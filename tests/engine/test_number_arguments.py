"""A Python number among the arguments: from its second value on an input of one graph, or else a graph each, up to eight."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

import ov_backend
from ov_backend import Settings
from tests.helpers.small import engine_for

Strict = Callable[..., Settings]
Forward = Callable[[Any, torch.Tensor, Any], torch.Tensor]

KINDS = (int, float)
_FLOATS = [0.5, 0.7, 1.0, -0.3, 0.0, 2.0, 1e-3, 3.14159, 1e6, -2.5]


def _net(forward: Forward, dtype: torch.dtype = torch.float32) -> torch.nn.Module:
    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(4, 4)
            self.eval().requires_grad_(False).to(dtype)

        def forward(self, x: torch.Tensor, number: Any = 1.0) -> torch.Tensor:
            return forward(self, self.layer(x), number)

    return Net()


def _answers(settings: Settings, net: torch.nn.Module, values: Sequence[Any], dtype: torch.dtype = torch.float32) -> Any:
    network, x = engine_for(settings, net), torch.randn(3, 4).to(dtype)
    for value in values:
        expected, got = net(x, value), network(x, value)
        tolerance = 1e-5 if dtype == torch.float32 else 1e-2
        torch.testing.assert_close(got, expected, rtol=tolerance, atol=tolerance)
    return network.statistics


_ALLOWED: dict[str, tuple[Forward, Sequence[Any]]] = {
    "product": (lambda net, y, number: y * number, _FLOATS),
    "computed in Python": (lambda net, y, number: y * (number * 2 + 1) + math.pi * number, _FLOATS),
    "bound": (lambda net, y, number: y.clamp(max=number), _FLOATS),
    "in a dict": (lambda net, y, number: y * number["scale"], [{"scale": each} for each in _FLOATS]),
    "two": (lambda net, y, number: y * number[0] + number[1], [[each, 1 - each] for each in _FLOATS]),
    "filled": (lambda net, y, number: y + torch.full((4,), number), _FLOATS),
    "of whole tensors": (lambda net, y, number: (y * 10).long() * number, _FLOATS),
    "whole": (lambda net, y, number: y * number, range(10)),
    "whole, added to whole tensors": (lambda net, y, number: (y * 10).int() + number, range(10)),
    "unused": (lambda net, y, number: y.relu(), _FLOATS),
    "an operator that stays in PyTorch": (lambda net, y, number: (y * 10).long() % number, range(1, 9)),
    "the same, of floats": (lambda net, y, number: y % number, _FLOATS[:4]),
    "a result without axes": (lambda net, y, number: (y * 10).long().sum() + torch.full((), number), range(4)),
}


@pytest.mark.parametrize("kind", _ALLOWED)
def test_one_graph_serves_all_values_from_the_second_on(kind: str, strict: Strict) -> None:
    forward, values = _ALLOWED[kind]
    statistics = _answers(strict(model_caching=False), _net(forward), values)
    assert statistics.compiles <= 2
    assert not statistics.fallbacks


def test_a_number_leaves_half_precision_what_it_is(strict: Strict) -> None:
    net = _net(lambda net, y, number: y * number + number, torch.bfloat16)
    assert _answers(strict(model_caching=False), net, _FLOATS[:8], torch.bfloat16).compiles <= 2


def _short_circuit(net: Any, y: torch.Tensor, number: Any) -> torch.Tensor:
    return y.tanh() if isinstance(number, float) and number == 1.0 else y * number


def _by_a_tuple_of_classes(net: Any, y: torch.Tensor, number: Any) -> torch.Tensor:
    return y.tanh() if isinstance(number, KINDS) and number == 1.0 else y * number


def _by_its_text(net: Any, y: torch.Tensor, number: Any) -> torch.Tensor:
    return y.tanh() if f"{number}" == "1.0" else y * number


_REFUSED: dict[str, Forward] = {
    "branches": lambda net, y, number: y.tanh() if number >= 1.0 else y * number,
    "is true": lambda net, y, number: y * number if number else y.tanh(),
    "asks for the class": _short_circuit,
    "asks for the class by a name": _by_a_tuple_of_classes,
    "asks for the text": _by_its_text,
    "square root": lambda net, y, number: y * math.sqrt(abs(number)),
    "float64": lambda net, y, number: (y.double() * number).float(),
    "scale of a sum": lambda net, y, number: torch.add(y, y.relu(), alpha=number),
}


@pytest.mark.parametrize("kind", _REFUSED)
def test_what_computes_otherwise_for_some_number_gets_a_graph_each(kind: str, strict: Strict) -> None:
    statistics = _answers(strict(model_caching=False), _net(_REFUSED[kind]), _FLOATS[:7])
    assert statistics.compiles >= 2
    assert not statistics.fallbacks


_ROUNDED: dict[str, Forward] = {
    "cancels out": lambda net, y, number: y * ((number + 1e16) - 1e16),
    "cancels out in part": lambda net, y, number: y * ((number + 1e16) - (1e16 - 4)),
    "is infinite in between": lambda net, y, number: y * (number * 1e200 * 1e200 * 1e-200 * 1e-200),
    "less itself": lambda net, y, number: y + (number - number),
    "times nothing": lambda net, y, number: y + number * 0,
}


@pytest.mark.parametrize("kind", _ROUNDED)
def test_numbers_are_computed_step_by_step(kind: str, strict: Strict) -> None:
    net, x = _net(_ROUNDED[kind]), torch.randn(3, 4)
    network = engine_for(strict(model_caching=False), net)
    for value in (0.0, 4.0, 8.0, 0.5, math.inf):
        torch.testing.assert_close(network(x, value), net(x, value), equal_nan=True)


def test_more_than_eight_graphs_are_not_made(strict: Strict) -> None:
    settings = strict(model_caching=False, fallback="pytorch")
    statistics = _answers(settings, _net(_short_circuit), _FLOATS)
    assert statistics.compiles == 8
    ((reason, times),) = statistics.fallbacks.items()
    assert times == 2
    assert "8 different values" in reason


@pytest.mark.parametrize("values", [[1, 2, 2.5, 3, 0.5, True], [0.5, 0.7, 2, 3, 1.5, True]])
def test_a_whole_number_is_no_float(values: Sequence[Any], strict: Strict) -> None:
    for forward in (lambda net, y, number: y * number, lambda net, y, number: (y * 10).long() * number):
        _answers(strict(model_caching=False), _net(forward), values)


def test_a_change_of_the_code_is_seen_where_numbers_are_inputs(strict: Strict) -> None:
    net = _net(lambda net, y, number: y * number * net.gain)
    net.gain = 2.0  # type: ignore[assignment]
    network, x = engine_for(strict(model_caching=False), net), torch.randn(3, 4)
    for gain, number in ((2.0, 0.5), (2.0, 0.7), (3.0, 0.9), (2.0, 1.1), (3.0, 0.5)):
        net.gain = gain  # type: ignore[assignment]
        torch.testing.assert_close(network(x, number), net(x, number))
    with torch.no_grad():
        net.layer.weight.mul_(2)  # type: ignore[operator, union-attr]
    torch.testing.assert_close(network(x, 0.3), net(x, 0.3))
    assert network.statistics.compiles <= 4


def test_accelerated_modules_take_numbers_as_inputs(strict: Strict) -> None:
    net, x = _net(lambda net, y, number: y * number), torch.randn(3, 4)
    with ov_backend.accelerate({"net": net}, settings=strict()) as accelerated:
        for i in range(30):
            net(x, number=i * 0.1)
        assert accelerated.stats()["net"]["compiles"] <= 3
