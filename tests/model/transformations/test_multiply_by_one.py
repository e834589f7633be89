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
from tests.helpers.small import Computing, engine_for

Strict = Callable[..., Settings]


def one(value: float = 1.0) -> ov.Node:
    return ops.constant(np.full((1, 1), value, np.float32))


def converted(value: ov.Node, times: int) -> ov.Node:
    for _ in range(times):
        value = ops.convert(value, "f32")
    return value


#: Models of one input, and how many products stay. A result must not become a parameter.
MODELS: dict[str, tuple[Callable[[ov.Node], ov.Node], int]] = {
    "a product with one": (lambda x: ops.relu(ops.multiply(x, one())), 0),
    "with a converted factor first": (lambda x: ops.relu(ops.multiply(ops.convert(ops.constant(np.int32(1)), "f32"), x)), 0),
    "a result behind another operator": (lambda x: ops.multiply(ops.relu(x), one()), 0),
    "another factor": (lambda x: ops.relu(ops.multiply(x, one(2.0))), 1),
    "a product that broadcasts": (lambda x: ops.relu(ops.multiply(x, ops.constant(np.ones((1, 1, 1), np.float32)))), 1),
    "a result": (lambda x: ops.multiply(x, one()), 1),
    "a result of a converted input": (lambda x: ops.multiply(converted(x, 1), one()), 1),
    "a result of an input converted twice": (lambda x: ops.multiply(converted(x, 2), one()), 1),
    "two products of an input": (lambda x: ops.multiply(ops.multiply(x, one()), one()), 1),
}


@pytest.mark.parametrize("name", MODELS)
def test_products_with_one_are_removed(name: str) -> None:
    build, left = MODELS[name]
    x = ops.parameter([2, 3], np.float32)
    model = ov.Model([build(x)], [x])
    remove_multiplications_by_one(model)
    model.validate_nodes_and_infer_types()
    assert [op.get_type_name() for op in model.get_ordered_ops()].count("Multiply") == left


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
    module = Computing(FUNCTIONS[name])
    network = engine_for(strict(precision=precision), module)
    for value in (3.0, -7.0):
        x = torch.full((2, 3), value).to(dtype)
        for output, expected in zip(network(x), module(x)):
            assert torch.allclose(output.float(), expected.float(), rtol=1e-2)
    assert network.statistics.calls == 2
