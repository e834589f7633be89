"""Writes to a graph's own intermediate results become functional operators; all other writes stay."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.fx import Graph, GraphModule

from ov_backend.trace.lowering.functionalize import functionalize_intermediates, hidden_writes, mutates
from tests.helpers.graphs import assert_close, names, run_eagerly, traced

aten = torch.ops.aten


def writes(gm: GraphModule) -> list[str]:
    """The operators that still write to an argument."""
    return [str(node.target) for node in gm.graph.nodes if mutates(node)]


FUNCTIONALIZED: dict[str, tuple[Callable[[torch.Tensor], Any], str]] = {
    "add_": (lambda x: x.exp().add_(1), "aten.add.Tensor"),
    "relu_": (lambda x: x.exp().relu_(), "aten.relu.default"),
    "masked_fill_": (lambda x: x.exp().masked_fill_(x > 0, 2.0), "aten.masked_fill.Scalar"),
}


@pytest.mark.parametrize("name", FUNCTIONALIZED)
def test_a_write_to_an_intermediate_result_becomes_functional(name: str) -> None:
    function, operator = FUNCTIONALIZED[name]
    x = torch.randn(2, 3)
    gm = traced(function, x)
    assert writes(gm)
    gm = functionalize_intermediates(gm)
    assert not writes(gm)
    assert operator in names(gm)
    before = x.clone()
    assert_close(run_eagerly(gm, x), [function(x)])
    assert torch.equal(x, before)


def test_reads_before_the_write_see_the_old_value_and_later_ones_the_new() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = x.exp()
        before = y * 2
        y.add_(1)
        return before - y * 3

    x = torch.randn(4)
    gm = functionalize_intermediates(traced(f, x))
    assert not writes(gm)
    assert_close(run_eagerly(gm, x), [f(x)])


def to_a_view(x: torch.Tensor) -> torch.Tensor:
    y = x.exp()
    y[0].add_(1)
    return y


def to_what_has_a_view(x: torch.Tensor) -> torch.Tensor:
    y = x.exp()
    view = y.view(-1)
    y.add_(1)
    return view


STAY: dict[str, tuple[Callable[[torch.Tensor], Any], list[str]]] = {
    "to a view": (to_a_view, ["aten.add_.Tensor"]),
    "to what has a view": (to_what_has_a_view, ["aten.add_.Tensor"]),
    "two to one tensor": (lambda x: x.exp().mul_(2).sub_(1), ["aten.mul_.Tensor", "aten.sub_.Tensor"]),
    "to an input": (lambda x: x.add_(1), ["aten.add_.Tensor"]),
    "none": (lambda x: (x + 1).relu(), []),
}


@pytest.mark.parametrize("name", STAY)
def test_all_other_writes_stay(name: str) -> None:
    function, expected = STAY[name]
    assert writes(functionalize_intermediates(traced(function, torch.randn(2, 3)))) == expected


@pytest.mark.parametrize("training", [True, False])
def test_batch_norm_writes_to_its_statistics_in_training(training: bool) -> None:
    graph = Graph()
    x, mean, var = (graph.placeholder(name) for name in ("x", "mean", "var"))
    node = graph.call_function(aten.native_batch_norm.default, (x, None, None, mean, var, training, 0.1, 1e-5))
    assert not node.target._schema.is_mutable, "its schema says that it writes to nothing"
    assert mutates(node) is training
    assert hidden_writes(node.target, node.args) == ([mean, var] if training else [])


def test_statistics_that_are_not_there_are_not_written_to() -> None:
    assert hidden_writes(aten.native_batch_norm.default, (None, None, None, None, None, True, 0.1, 1e-5)) == []
