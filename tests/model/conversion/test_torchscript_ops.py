"""Operators of kernels become the functions that TorchScript has, and compute the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from ov_backend.model.conversion.torchscript import compose
from tests.helpers.graphs import assert_close, names, run_eagerly, traced

aten = torch.ops.aten

#: A function, and the operator that it becomes.
COMPOSED: dict[str, tuple[Callable[..., Any], list[torch.Tensor], str]] = {
    "softmax": (lambda x: torch.softmax(x, -1), [torch.randn(3, 4)], "aten.softmax.int"),
    "log_softmax": (lambda x: torch.log_softmax(x, 0), [torch.randn(3, 4)], "aten.log_softmax.int"),
    "_unsafe_view": (lambda x: aten._unsafe_view(x, [4, 3]), [torch.randn(3, 4)], "aten.view.default"),
    "layer_norm": (lambda x, w: F.layer_norm(x, [4], w), [torch.randn(3, 4), torch.randn(4)], "aten.layer_norm.default"),
    "group_norm": (lambda x: F.group_norm(x, 2), [torch.randn(2, 4, 3)], "aten.group_norm.default"),
    "batch_norm": (
        lambda x, mean, var: aten._native_batch_norm_legit_no_training(x, None, None, mean, var, 0.1, 1e-5)[0],
        [torch.randn(2, 4, 3), torch.randn(4), torch.rand(4)],
        "aten.batch_norm.default",
    ),
    "max_pool2d": (lambda x: aten.max_pool2d_with_indices(x, [2, 2])[0], [torch.randn(1, 2, 6, 6)], "aten.max_pool2d.default"),
}


@pytest.mark.parametrize("name", COMPOSED)
def test_an_operator_of_a_kernel_is_composed(name: str) -> None:
    function, inputs, operator = COMPOSED[name]
    gm = traced(lambda *inputs: function(*inputs) * 2, *inputs)
    assert operator not in names(gm)
    composed = compose(gm)
    assert names(composed) == [operator, "aten.mul.Tensor"]
    assert_close(run_eagerly(composed, *inputs), [function(*inputs) * 2])
    assert all(node.meta.get("val") is not None for node in composed.graph.nodes if node.op == "call_function")


def test_an_operator_of_which_more_is_read_stays() -> None:
    x = torch.randn(1, 2, 6, 6)
    gm = compose(traced(lambda x: aten.max_pool2d_with_indices(x, [2, 2]), x))
    assert names(gm) == ["aten.max_pool2d_with_indices.default"]
    assert_close(run_eagerly(gm, x), list(aten.max_pool2d_with_indices(x, [2, 2])))


def test_other_operators_stay() -> None:
    assert names(compose(traced(lambda x: x.relu() + 1, torch.randn(2)))) == ["aten.relu.default", "aten.add.Tensor"]
