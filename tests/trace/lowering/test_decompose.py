"""A graph is traced again with decompositions; those that write where no node reads are left out."""

from __future__ import annotations

import torch

from ov_backend.trace.lowering.decompose import decompose
from ov_backend.trace.lowering.decompositions import OPENVINO_DECOMPOSITIONS, selected
from ov_backend.trace.lowering.functionalize import mutates
from tests.helpers.graphs import assert_close, names, run_eagerly, traced

aten = torch.ops.aten


def test_the_operators_of_the_table_are_decomposed() -> None:
    x = torch.randn(2, 3)
    gm = decompose(traced(lambda x: torch.nn.functional.silu(x).tanh(), x), selected(("aten.silu",)))
    assert "aten.silu.default" not in names(gm)
    assert {"aten.sigmoid.default", "aten.tanh.default"} <= set(names(gm))
    assert_close(run_eagerly(gm, x), [torch.nn.functional.silu(x).tanh()])


def test_a_graph_without_these_operators_is_returned_itself() -> None:
    gm = traced(lambda x: x.tanh(), torch.randn(2))
    assert decompose(gm, selected(("aten.silu",))) is gm


def test_a_graph_whose_calls_a_decomposition_leaves_alone_is_not_traced_again() -> None:
    x, a, b, i = torch.randn(3), torch.randn(2, 4), torch.randn(4, 3), torch.arange(3)

    def forward(x: torch.Tensor, a: torch.Tensor, b: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        return torch.where(i > 1, torch.addmm(x, a, b), i.float()).cumsum(0)

    gm = traced(forward, x, a, b, i)
    assert {"aten.addmm.default", "aten.where.self", "aten._to_copy.default", "aten.cumsum.default"} <= set(names(gm))
    assert decompose(gm, OPENVINO_DECOMPOSITIONS) is gm

    gm = decompose(traced(lambda *args: forward(*args) + torch.addmm(*args[:3], beta=0), x, a, b, i), OPENVINO_DECOMPOSITIONS)
    assert "aten.mm.default" in names(gm), "one call is enough"
    assert "aten.addmm.default" in names(gm)


def test_inputs_keep_their_shapes_dtypes_and_strides() -> None:
    x, i = torch.randn(3, 4).t(), torch.randint(0, 3, (2,))
    gm = decompose(traced(lambda x, i: torch.nn.functional.silu(x)[i], x, i), selected(("aten.silu",)))
    values = [node.meta["val"] for node in gm.graph.nodes if node.op == "placeholder"]
    assert [(v.shape, v.dtype, v.stride()) for v in values] == [(v.shape, v.dtype, v.stride()) for v in (x, i)]


def written_in_place(x: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    y.add_(1)
    return y


def written_through_a_view(x: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    y[0].add_(1)
    return y


def test_a_decomposition_that_writes_to_its_own_copy_is_functionalized() -> None:
    x = torch.randn(2)
    gm = decompose(traced(torch.tanh, x), {aten.tanh.default: written_in_place})
    assert names(gm) == ["aten.clone.default", "aten.add.Tensor"]
    assert_close(run_eagerly(gm, x), [x + 1])


def test_a_decomposition_that_writes_to_a_view_is_left_out() -> None:
    gm = traced(torch.tanh, torch.randn(2))
    assert decompose(gm, {aten.tanh.default: written_through_a_view}) is gm


def test_the_others_are_decomposed_all_the_same() -> None:
    x = torch.randn(2)
    table = {aten.tanh.default: written_through_a_view, **selected(("aten.silu",))}
    gm = decompose(traced(lambda x: torch.nn.functional.silu(x).tanh(), x), table)
    assert "aten.tanh.default" in names(gm)
    assert "aten.silu.default" not in names(gm)
    assert not any(mutates(node) for node in gm.graph.nodes)
    assert_close(run_eagerly(gm, x), [torch.nn.functional.silu(x).tanh()])


def test_constants_are_kept() -> None:
    x, table = torch.randn(3), torch.tensor([1.0, 2.0, 3.0])
    gm = decompose(traced(lambda x: torch.nn.functional.silu(x) + table, x), selected(("aten.silu",)))
    assert_close(run_eagerly(gm, x), [torch.nn.functional.silu(x) + table])
