"""A result may be an object that the forward makes and that is no more than its attributes; one that it keeps stays PyTorch's.

An object that it makes and lets go ends in a trace as it does in PyTorch.
"""

from __future__ import annotations

import dataclasses
import functools
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch

from ov_backend import Settings, accelerate
from tests.helpers.small import engine_for
from tests.trace.capture.test_results import Answering

Strict = Callable[..., Settings]
X = torch.linspace(-1, 1, 12).reshape(3, 4)


@dataclasses.dataclass(frozen=True)
class Answer:
    first: torch.Tensor
    by_layer: dict[int, torch.Tensor]
    name: str = "answer"


@dataclasses.dataclass
class Slotted:
    __slots__ = ("first",)
    first: torch.Tensor


class Net(torch.nn.Module):
    def __init__(self, answer: Callable[[Any, torch.Tensor], Any]) -> None:
        super().__init__()
        self.layer, self.answer = torch.nn.Linear(4, 4), answer
        self.kept = Answer(torch.zeros(1), {})
        self.numbers: dict[int, Any] = {}

    def forward(self, x: torch.Tensor) -> Any:
        return self.answer(self, self.layer(x).sin())


def _run(net: Net, settings: Settings) -> tuple[list[Any], dict[str, Any]]:
    with accelerate({"net": net}, settings) as accelerated:
        results = [net(X), net(X * 2)]
    return results, accelerated.stats()["net"]


def test_a_dataclass_that_the_forward_makes_is_made_at_every_call(strict: Strict) -> None:
    net = Net(lambda net, y: {"both": Answer(y, {0: y * 2, 3: y + 1})}).eval().requires_grad_(False)
    results, statistics = _run(net, strict())
    assert (statistics["calls"], statistics["by_blocks"]) == (2, {})
    for result, x in zip(results, (X, X * 2)):
        expected = net(x)["both"]
        assert type(result["both"]) is Answer
        assert (result["both"].name, list(result["both"].by_layer)) == ("answer", [0, 3])
        torch.testing.assert_close(result["both"].first, expected.first, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(result["both"].by_layer, expected.by_layer, rtol=1e-4, atol=1e-5)
    assert results[0]["both"] is not results[1]["both"]


@functools.lru_cache
def cached() -> Answer:
    return Answer(torch.ones(1), {})


KEPT: dict[str, Callable[[Net, torch.Tensor], Any]] = {
    "an object of the module's": lambda net, y: (y, net.kept),
    "a dict of the module's": lambda net, y: Answer(y, net.numbers),
    "an object in a cache": lambda net, y: (y, cached()),
    "an object with slots": lambda net, y: Slotted(y),
}


@pytest.mark.parametrize("name", KEPT)
def test_what_a_compiled_graph_could_not_return_is_answered_by_blocks(name: str, strict: Strict) -> None:
    net = Net(KEPT[name]).eval().requires_grad_(False)
    results, statistics = _run(net, strict(fallback="pytorch"))
    assert sum(statistics["by_blocks"].values()) + sum(statistics["fallbacks"].values()) == 2
    for result in results:
        assert not isinstance(result, tuple) or any(result[1] is kept for kept in (net.kept, cached()))
        assert not isinstance(result, Answer) or result.by_layer is net.numbers


def test_a_network_that_returns_its_cache_runs_whole(strict: Strict) -> None:
    caches = pytest.importorskip("transformers.cache_utils")
    if not hasattr(caches, "DynamicLayer"):
        pytest.skip("this version of transformers keeps no layers in its caches")

    def answer(net: Net, y: torch.Tensor) -> Any:
        cache = caches.DynamicCache()
        for layer in range(2):
            keys, values = cache.update(y[None, None], y[None, None] * 2, layer)
            y = keys[0, 0] + values[0, 0]
        return y, cache

    net = Net(answer).eval().requires_grad_(False)
    results, statistics = _run(net, strict())
    assert (statistics["calls"], statistics["by_blocks"], statistics["in_pytorch"]) == (2, {}, {})
    for (result, cache), x in zip(results, (X, X * 2)):
        expected, whole = net(x)
        torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-5)
        assert [type(layer) for layer in cache.layers] == [caches.DynamicLayer] * 2
        cache.update(x[None, None], x[None, None], 1)
        whole.update(x[None, None], x[None, None], 1)
        for one, other in zip(cache.layers, whole.layers):
            torch.testing.assert_close([one.keys, one.values], [other.keys, other.values], rtol=1e-4, atol=1e-5)
            assert {**vars(one), "keys": 0, "values": 0} == {**vars(other), "keys": 0, "values": 0}


class Ending:
    """Notes its end in a list."""

    def __init__(self, ends: list[float]) -> None:
        self.ends = ends

    def __del__(self) -> None:
        self.ends.append(1.0)


def test_what_an_object_does_at_its_end_is_done_at_every_call(strict: Strict) -> None:
    ends = list[float]()
    module = Answering(lambda m, y: (y * (len(ends) + 1), Ending(ends))[0])
    network = engine_for(strict(fallback="pytorch"), module)
    for _ in range(3):
        answer = network(X)
        ends.pop()
        torch.testing.assert_close(answer, module(X), rtol=1e-4, atol=1e-5)
    assert len(ends) == 3


def test_an_object_that_nobody_has_is_gone_in_a_trace_too(strict: Strict) -> None:
    module = Answering(lambda m, y: y * (2.0 if weakref.ref(Ending([]))() is None else 3.0))
    network = engine_for(strict(), module)
    torch.testing.assert_close(network(X), module(X), rtol=1e-4, atol=1e-5)
    assert network.statistics.calls == 1
