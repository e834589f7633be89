"""What a trace refuses in the results of a forward."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch

from ov_backend import Settings
from tests.helpers.readers import X, assert_eager
from tests.helpers.small import engine_for

Strict = Callable[..., Settings]


class Pooled(torch.nn.Module):
    """As Stable Diffusion 3's text encoder: one of its results is a row that is chosen by an index."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.linear(x)[None]
        return x[
            torch.arange(x.shape[0]),
            x.sum(-1).to(dtype=torch.int).argmax(dim=-1),
        ]


class Marked(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result = self.linear(x)
        result.scale = 2.0  # type: ignore[attr-defined]
        return result


def test_a_row_that_is_chosen_by_an_index_is_answered(strict: Strict) -> None:
    module = Pooled().eval()
    network = engine_for(strict(), module)
    assert_eager(network, module)
    assert network.statistics.fallbacks.total() == 0


def test_a_result_with_an_attribute_stays_in_pytorch(strict: Strict) -> None:
    network = engine_for(strict(fallback="pytorch"), Marked())
    assert network(X).scale == 2.0
    assert network.statistics.calls == 0


class Answering(torch.nn.Module):
    """Returns what a function makes of it and of its linear layer's result."""

    def __init__(self, answer: Callable[[Any, torch.Tensor], Any]) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.names = ["a"]
        self.answer = answer

    def forward(self, x: torch.Tensor) -> Any:
        return self.answer(self, self.linear(x))


def _backward(module: Any, y: torch.Tensor) -> torch.Tensor:
    with torch.enable_grad():
        module.linear(X).sum().backward()
    return y


@functools.lru_cache
def cached() -> list[int]:
    return [1]


REFUSED: dict[str, Callable[[Any, torch.Tensor], Any]] = {
    "asks for gradients": lambda m, y: y.requires_grad_(),
    "a parameter": lambda m, y: torch.nn.Parameter(y, requires_grad=False),
    "a weight": lambda m, y: (y, m.linear.weight),
    "a list of the module": lambda m, y: (y, m.names),
    "a list in a cache": lambda m, y: (y, cached()),
    "gradients of weights": _backward,
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_result_that_is_more_than_its_values_stays_in_pytorch(strict: Strict, name: str) -> None:
    module = Answering(REFUSED[name])
    network = engine_for(strict(fallback="pytorch"), module)
    for _ in range(2):
        answer, expected = network(X), module(X)
    first = answer[0] if isinstance(answer, tuple) else answer
    assert type(first) is type(expected[0] if isinstance(expected, tuple) else expected)
    if isinstance(answer, tuple):
        assert answer[1] is expected[1]
    else:
        assert answer.requires_grad == expected.requires_grad
    assert network.statistics.calls == 0
    assert (module.linear.weight.grad is not None) == (name == "gradients of weights")


class Filling(torch.nn.Module):
    """Returns the list that it is given, beside what it has computed."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, states: list[torch.Tensor]) -> dict[str, Any]:
        return {"y": self.linear(x), "states": states}


def test_a_list_that_a_forward_is_given_and_returns_stays_the_callers(strict: Strict) -> None:
    network, states = engine_for(strict(fallback="pytorch"), Filling()), [X, X * 2]
    assert network(X, states)["states"] is states
    assert network.statistics.calls == 0


def test_the_forward_that_pytorch_runs_finds_no_error_of_ours(strict: Strict) -> None:
    module = Answering(lambda m, y: y if sys.exc_info()[0] is None else -y)
    network = engine_for(strict(fallback="pytorch"), module)
    for _ in range(2):
        torch.testing.assert_close(network(X), module(X))
    assert network.statistics.calls == 0


def test_what_the_kernel_of_an_operator_reads_is_followed(strict: Strict) -> None:
    factor = [2.0]
    library = torch.library.Library("of_this_test", "DEF")
    library.define("scale(Tensor x) -> Tensor")
    library.impl("scale", lambda x: x * factor[0], "CompositeImplicitAutograd")
    module = Answering(lambda m, y: torch.ops.of_this_test.scale(y))
    network = engine_for(strict(fallback="pytorch"), module)
    for factor[0] in (2.0, 3.0):
        assert_eager(network, module)
    del library


LITERALS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "a number": lambda x: torch.tensor(0.0),
    "a list": lambda x: torch.tensor([1.0, 2.0]),
    "whole numbers": lambda x: torch.tensor([1, 2]),
    "double": lambda x: torch.tensor([1.0, 2.0], dtype=torch.float64),
    "a view of one": lambda x: torch.tensor([1, 2])[None],
    "like the input": lambda x: x.new_tensor([1.0, 2.0]),
    "a size": lambda x: torch.tensor(x.shape[0]),
}


class WithLiteral(torch.nn.Module):
    def __init__(self, literal: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.literal, self.linear = literal, torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.linear(x), self.literal(x)


@pytest.mark.parametrize("literal", LITERALS.values(), ids=LITERALS.keys())
@pytest.mark.parametrize("disabled", [(), ("aten.unsqueeze.default",)], ids=["", "views in PyTorch"])
def test_a_literal_that_is_returned_is_the_callers(
    strict: Strict, literal: Callable[[torch.Tensor], torch.Tensor], disabled: tuple[str, ...]
) -> None:
    network = engine_for(strict(disabled_ops=disabled), WithLiteral(literal).requires_grad_(False))
    first, second = network(X)[1], network(X)[1]
    first += 5
    assert torch.equal(second, literal(X))
    assert torch.equal(network(X)[1], literal(X))
