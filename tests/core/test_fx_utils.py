"""What the stages ask of graphs: their text above all, which is a key of the graph store."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch

from ov_backend.core import fx_utils
from tests.helpers.graphs import assert_close, names, node_of, run_eagerly, traced

aten = torch.ops.aten
A, B = torch.randn(2, 3), torch.randn(2, 3)
TABLE, TABLE_TOO, OTHER = torch.arange(3.0), torch.arange(3.0), torch.tensor([0.0, 1.0, 2.5])


def text(function: Callable[..., Any], *inputs: torch.Tensor) -> str:
    return fx_utils.graph_text(traced(function, *inputs))


DIFFERENT: dict[str, tuple[tuple[Any, ...], tuple[Any, ...]]] = {
    "operators": ((lambda a: a.exp(), A), (lambda a: a.tanh(), A)),
    "overloads": ((lambda a, b: a + b, A, B), (lambda a, b: a + 1, A, B)),
    "numbers": ((lambda a: a + 1, A), (lambda a: a + 2, A)),
    "types of numbers": ((lambda a: a + 1, A), (lambda a: a + 1.0, A)),
    "keywords": ((lambda a, b: torch.add(a, b, alpha=2), A, B), (lambda a, b: torch.add(a, b, alpha=3), A, B)),
    "edges": ((lambda a, b: a - b, A, B), (lambda a, b: b - a, A, B)),
    "which result is read": ((lambda a: torch.topk(a, 2)[0], A), (lambda a: torch.topk(a, 2)[1], A)),
    "the order of results": ((lambda a: (a.exp(), a.tanh()), A), (lambda a: (a.exp(), a.tanh())[::-1], A)),
    "a result more": ((lambda a: a.exp(), A), (lambda a: (a.exp(), a), A)),
    "shapes": ((lambda a: a + 1, A), (lambda a: a + 1, A[:1])),
    "strides": ((lambda a: a + 1, A), (lambda a: a + 1, torch.randn(3, 2).t())),
    "dtypes": ((lambda a: a + 1, A), (lambda a: a + 1, A.double())),
    "sizes in lists": ((lambda a: a.view(3, 2), A), (lambda a: a.view(6, 1), A)),
    "values of constants": ((lambda a: a + TABLE, A), (lambda a: a + OTHER, A)),
    "dtypes of constants": ((lambda a: a.int() + TABLE.int(), A), (lambda a: a.int() + TABLE.to(torch.int16), A)),
}
EQUAL: dict[str, tuple[tuple[Any, ...], tuple[Any, ...]]] = {
    "values of inputs": ((lambda a: a + 1, A), (lambda a: a + 1, B)),
    "names of variables": ((lambda a: a + 1, A), (lambda other: other + 1, A)),
    "objects of constants": ((lambda a: a + TABLE, A), (lambda a: a + TABLE_TOO, A)),
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_graphs_that_differ_in_this_have_different_texts(name: str) -> None:
    first, second = DIFFERENT[name]
    assert text(*first) != text(*second)


@pytest.mark.parametrize("name", EQUAL)
def test_this_does_not_matter(name: str) -> None:
    first, second = EQUAL[name]
    assert text(*first) == text(*second)


def test_names_of_nodes_do_not_matter() -> None:
    gm = traced(lambda a: (a + 1).exp(), A)
    before = fx_utils.graph_text(gm)
    for i, node in enumerate(gm.graph.nodes):
        node.name = f"renamed_{i}"
    assert fx_utils.graph_text(gm) == before


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.bool, torch.int64], ids=str)
def test_constants_of_any_dtype_have_a_text(dtype: torch.dtype) -> None:
    constants = [torch.tensor(values).to(dtype) for values in ([0, 1, 1], [1, 1, 0])]
    first, second = (text(partial(torch.mul, constant), A) for constant in constants)
    assert first != second
    assert first == text(partial(torch.mul, constants[0].clone()), A)


def test_empty_constants_have_a_text() -> None:
    empty = torch.empty(0)
    assert "[0]#" in text(lambda a: torch.cat([a.view(-1), empty]), A)


def test_whether_more_than_the_first_result_is_read() -> None:
    def node(function: Callable[..., Any]) -> torch.fx.Node:
        return node_of(traced(function, A), "aten.topk")

    assert fx_utils.only_first_result_is_read(node(lambda a: torch.topk(a, 2)[0]))
    assert not fx_utils.only_first_result_is_read(node(lambda a: torch.topk(a, 2)[1]))
    assert not fx_utils.only_first_result_is_read(node(lambda a: torch.topk(a, 2)))


def test_an_operator_that_is_read_as_a_whole() -> None:
    graph = torch.fx.Graph()
    node = graph.call_function(aten.topk.default, (graph.placeholder("x"), 2))
    graph.output(node)
    assert not fx_utils.only_first_result_is_read(node)


def test_values_that_are_read() -> None:
    def shapes(function: Callable[..., Any], name: str) -> list[torch.dtype]:
        return [value.dtype for value in fx_utils.values_read(node_of(traced(function, A), name))]

    assert shapes(lambda a: a.exp(), "aten.exp") == [torch.float32]
    assert shapes(lambda a: torch.topk(a, 2)[1], "aten.topk") == [torch.int64]
    assert shapes(lambda a: tuple(torch.topk(a, 2)), "aten.topk") == [torch.float32, torch.int64]
    gm = traced(lambda a: a + 1, A)
    assert fx_utils.values_read(fx_utils.output_node(gm)) == []


def test_operators_placeholders_and_the_output() -> None:
    gm = traced(lambda a, b: torch.topk(a + b, 2)[0], A, B)
    assert names(gm) == ["aten.add.Tensor", "aten.topk.default"]
    assert [node.op for node in fx_utils.placeholders(gm)] == ["placeholder"] * 2
    assert fx_utils.output_node(gm).op == "output"


def test_a_copy_is_independent_and_keeps_names_and_values() -> None:
    gm = traced(lambda a: (a + TABLE).exp(), A)
    copied = fx_utils.copy(gm)
    assert [node.name for node in copied.graph.nodes] == [node.name for node in gm.graph.nodes]
    assert fx_utils.graph_text(copied) == fx_utils.graph_text(gm)
    node_of(copied, "aten.exp").target = aten.tanh.default
    copied.recompile()
    assert_close(run_eagerly(gm, A), [(A + TABLE).exp()])
    assert_close(run_eagerly(copied, A), [(A + TABLE).tanh()])


def test_a_lazy_graph_module_runs_as_any_other() -> None:
    gm = traced(lambda a: a.exp() + 1, A)
    lazy = fx_utils.graph_module(gm, gm.graph)
    assert_close(run_eagerly(lazy, A), [A.exp() + 1])
    with fx_utils.lazy_code():
        traced_lazily = traced(lambda a: a.exp() + 1, A)
    assert_close(run_eagerly(traced_lazily, A), [A.exp() + 1])
