"""Products with one go, but never so that a result becomes a parameter: the device returns unwritten memory there."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import openvino as ov
import openvino.opset13 as ops
import pytest
import torch

from ov_backend import Settings
from ov_backend.model.transformations.multiply_by_one import remove_multiplications_by_one
from tests.helpers.small import engine_for

Strict = Callable[..., Settings]


def one(value: float = 1.0) -> ov.Node:
    return ops.constant(np.full((1, 1), value, np.float32))


def parameter() -> ov.Node:
    return ops.parameter([2, 3], np.float32)


def rewritten(result: ov.Node, x: ov.Node) -> list[str]:
    """The operators of a model after the transformation."""
    model = ov.Model([result], [x])
    remove_multiplications_by_one(model)
    model.validate_nodes_and_infer_types()
    return sorted(op.get_type_name() for op in model.get_ordered_ops())


def test_a_product_with_one_is_removed() -> None:
    x = parameter()
    assert rewritten(ops.relu(ops.multiply(x, one())), x) == ["Parameter", "Relu", "Result"]


def test_the_factor_may_come_first_and_be_converted() -> None:
    x = parameter()
    factor = ops.convert(ops.constant(np.int32(1)), "f32")
    assert rewritten(ops.relu(ops.multiply(factor, x)), x) == ["Parameter", "Relu", "Result"]


def test_a_product_that_is_a_result_is_removed_behind_another_operator() -> None:
    x = parameter()
    assert rewritten(ops.multiply(ops.relu(x), one()), x) == ["Parameter", "Relu", "Result"]


def test_another_factor_stays() -> None:
    x = parameter()
    assert "Multiply" in rewritten(ops.relu(ops.multiply(x, one(2.0))), x)


def test_a_product_that_broadcasts_stays() -> None:
    x = parameter()
    assert "Multiply" in rewritten(ops.relu(ops.multiply(x, ops.constant(np.ones((1, 1, 1), np.float32)))), x)


@pytest.mark.parametrize("converts", [0, 1, 2])
def test_a_result_does_not_become_a_parameter(converts: int) -> None:
    x = value = parameter()
    for _ in range(converts):
        value = ops.convert(value, "f32")
    assert rewritten(ops.multiply(value, one()), x).count("Multiply") == 1


def test_of_two_products_of_an_input_one_stays() -> None:
    x = parameter()
    assert rewritten(ops.multiply(ops.multiply(x, one()), one()), x).count("Multiply") == 1


class Calls(torch.nn.Module):
    def __init__(self, function: Callable[[torch.Tensor], tuple[torch.Tensor, ...]]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return self.function(x)


FUNCTIONS: dict[str, Callable[[torch.Tensor], tuple[torch.Tensor, ...]]] = {
    "alone": lambda x: (x * 1,),
    "beside another": lambda x: (x * 1, x + 1),
    "twice": lambda x: (x * 1 * 1, x * 1),
    "read on": lambda x: (x * 1, (x * 1).tanh()),
    "of the same dtype": lambda x: (x.to(x.dtype) * 1,),
    "of another dtype": lambda x: (x.double().float() * 1, x.int().float() * 1),
    "as a view": lambda x: ((x * 1).t(), x * 1),
}


@pytest.mark.parametrize("precision", ["f32", "bf16"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int32], ids=str)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_an_input_times_one_is_that_input(strict: Strict, name: str, dtype: torch.dtype, precision: str) -> None:
    """Each call is made with other values, so that memory of an earlier one cannot pass for an answer."""
    module = Calls(FUNCTIONS[name])
    network = engine_for(strict(precision=precision), module)
    for value in (3.0, -7.0):
        x = torch.full((2, 3), value).to(dtype)
        for output, expected in zip(network(x), module(x)):
            assert torch.allclose(output.float(), expected.float(), rtol=1e-2)
    assert network.statistics.calls == 2
