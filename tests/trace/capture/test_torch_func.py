"""What ``torch.func`` transforms within a forward is traced with the rest of it; what a trace cannot see there is said."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.func import functional_call

from ov_backend import Settings, accelerate

Strict = Callable[..., Settings]
X = torch.linspace(-1, 1, 12).reshape(3, 4)


class Net(torch.nn.Module):
    """A layer, and what a function of it and of the layer's result gives."""

    def __init__(self, function: Callable[[Any, torch.Tensor], Any]) -> None:
        super().__init__()
        self.layer, self.other = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
        self.function = function

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(self, self.layer(x))


def _ensemble(net: Net, y: torch.Tensor) -> torch.Tensor:
    both = [dict(layer.named_parameters()) for layer in (net.layer, net.other)]
    weights = {name: torch.stack([each[name] for each in both]) for name in both[0]}
    return torch.vmap(lambda each, x: functional_call(net.layer, each, (x,)), in_dims=(0, None))(weights, y)


def _labelled(net: Net, y: torch.Tensor) -> torch.Tensor:
    with torch.profiler.record_function("label"):
        return net.other(y).sin()


WHOLE: dict[str, Callable[[Net, torch.Tensor], Any]] = {
    "vmap": lambda net, y: torch.vmap(lambda row: row @ row + net.other(row).sum())(y),
    "nested": lambda net, y: torch.vmap(torch.vmap(lambda a, b: a * b.sin()))(y, y.exp()),
    "jvp": lambda net, y: torch.func.jvp(lambda x: net.other(x).sin(), (y,), (y * 2,)),
    "grad": lambda net, y: torch.func.grad(lambda x: net.other(x).sin().sum())(y),
    "an ensemble": _ensemble,
    "record_function": _labelled,
}


@pytest.mark.parametrize("name", WHOLE)
def test_it_is_traced_with_the_rest(name: str, strict: Strict) -> None:
    torch.manual_seed(0)
    net = Net(WHOLE[name]).eval().requires_grad_(False)
    expected = net(X)
    with accelerate({"net": net}, strict()) as accelerated:
        torch.testing.assert_close(net(X), expected, rtol=1e-4, atol=1e-5)
    statistics = accelerated.stats()["net"]
    assert (statistics["calls"], statistics["by_blocks"], statistics["in_pytorch"]) == (1, {}, {})


def _of_weights(net: Net, y: torch.Tensor) -> torch.Tensor:
    loss = torch.func.grad(lambda weights: functional_call(net.other, weights, (y,)).square().sum())
    return loss(dict(net.other.named_parameters()))["weight"]


def _branching(net: Net, y: torch.Tensor) -> torch.Tensor:
    return torch.cond(y.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (y,))


UNSEEN = [(_of_weights, "a weight to a function of torch.func"), (_branching, "torch.cond")]


@pytest.mark.parametrize(("function", "reason"), UNSEEN)
def test_what_a_trace_does_not_see_stays_in_pytorch_with_the_reason(function: Any, reason: str, strict: Strict) -> None:
    if function is _branching and torch.__version__.startswith("2.1."):
        pytest.skip("this torch has no torch.cond")
    torch.manual_seed(0)
    net = Net(function).eval().requires_grad_(False)
    with accelerate({"net": net}, strict(fallback="pytorch")) as accelerated:
        actual = net(X)
    torch.testing.assert_close(actual, net(X), rtol=1e-4, atol=1e-5)
    statistics = accelerated.stats()["net"]
    assert [reason in each for each in statistics["fallbacks"] | statistics["by_blocks"]] == [True]
