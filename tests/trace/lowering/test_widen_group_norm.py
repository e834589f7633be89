"""Group normalisation of bfloat16 is computed in float32."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.fx import GraphModule

from ov_backend.trace.lowering.passes.widen_group_norm import widen_group_norm
from tests.helpers.graphs import assert_close, names, node_of, run_eagerly, run_openvino, traced

NORM = "aten.native_group_norm.default"


def norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.group_norm(x, 2, weight, bias)


def widened(function: Callable[..., Any], *tensors: torch.Tensor) -> GraphModule:
    gm = widen_group_norm(traced(function, *tensors))
    gm.graph.eliminate_dead_code()  # of casts of results that are not read
    gm.recompile()
    return gm


def inputs(dtype: torch.dtype) -> list[torch.Tensor]:
    return [tensor.to(dtype) for tensor in (torch.randn(2, 4, 3, 3), torch.randn(4), torch.randn(4))]


def test_bfloat16_is_widened_and_the_result_narrowed() -> None:
    tensors = inputs(torch.bfloat16)
    gm = widened(norm, *tensors)
    assert names(gm) == ["aten._to_copy.default"] * 3 + [NORM, "aten._to_copy.default"]
    node = node_of(gm, NORM)
    assert [argument.meta["val"].dtype for argument in node.args[:3]] == [torch.float32] * 3
    assert node.meta["val"][0].dtype is torch.float32
    (result,) = run_eagerly(gm, *tensors)
    assert result.dtype is torch.bfloat16
    expected = norm(*(tensor.float() for tensor in tensors)).to(torch.bfloat16)
    assert torch.equal(result, expected), "rounded once, at the end"
    assert_close(run_openvino(gm, *tensors), [expected], 1e-2)


def test_no_weight_and_no_bias() -> None:
    x = inputs(torch.bfloat16)[0]
    gm = widened(lambda x: torch.nn.functional.group_norm(x, 2), x)
    assert names(gm).count("aten._to_copy.default") == 2
    assert torch.equal(run_eagerly(gm, x)[0], torch.nn.functional.group_norm(x.float(), 2).to(torch.bfloat16))


def test_a_shared_input_is_cast_once_and_each_result_that_is_read_is_narrowed() -> None:
    x, weight, _ = inputs(torch.bfloat16)

    def f(x: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.ops.aten.native_group_norm.default(x, weight, weight, 2, 4, 9, 2, 1e-5)

    gm = widened(f, x, weight)
    assert names(gm).count("aten._to_copy.default") == 2 + 3
    assert [result.dtype for result in run_eagerly(gm, x, weight)] == [torch.bfloat16] * 3


def test_other_dtypes_stay() -> None:
    assert names(widened(norm, *inputs(torch.float32))) == [NORM]
