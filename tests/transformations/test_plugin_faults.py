"""What the CPU device gets wrong in one form is computed in another."""

from __future__ import annotations

import numpy as np
import openvino as ov
import openvino.opset13 as ops
import pytest
import torch

from ov_backend import Settings
from ov_backend.transformations.plugin_faults import avoid_faults
from tests.helpers.small import engine_for


def answers(results: list[ov.Node], x: ov.Node, value: np.ndarray) -> list[np.ndarray]:
    model = ov.Model(results, [x])
    avoid_faults(model)
    compiled = ov.Core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    found = compiled([value])
    return [found[i] for i in range(len(results))]


def test_who_reads_a_concatenation_beside_an_absolute_value_gets_its_signs() -> None:
    x = ops.parameter([4], np.float32)
    joined = ops.concat([x, ops.tanh(x)], 0)
    value = np.array([-3.0, 2.0, -0.5, 1.0], np.float32)
    want = np.concatenate([value, np.tanh(value)])
    absolute, double = answers([ops.abs(joined), ops.multiply(joined, np.float32(2))], x, value)
    np.testing.assert_allclose(absolute, np.abs(want), rtol=1e-3)
    np.testing.assert_allclose(double, 2 * want, rtol=1e-3)


def test_a_weight_that_is_read_in_two_ways_is_right_in_both() -> None:
    rng = np.random.default_rng(0)
    for size, dtype in ((4, np.float32), (64, np.float32), (64, np.float16)):
        x, weight = ops.parameter([3, size], np.float32), ops.constant(rng.standard_normal((size, size)).astype(dtype))
        read = weight if dtype is np.float32 else ops.convert(weight, np.float32)
        plain, transposed = ops.matmul(x, read, False, False), ops.matmul(x, read, False, True)
        value = rng.standard_normal((3, size)).astype(np.float32)
        numbers = np.asarray(weight.data, np.float32)
        found = answers([plain, transposed, ops.matmul(transposed, read, False, False)], x, value)
        for got, want in zip(found, (value @ numbers, value @ numbers.T, value @ numbers.T @ numbers)):
            np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-3 * np.abs(want).max())


def test_a_weight_that_is_read_in_one_way_is_not_copied() -> None:
    x, weight = ops.parameter([3, 8], np.float32), ops.constant(np.ones((8, 8), np.float32))
    model = ov.Model([ops.matmul(ops.tanh(ops.matmul(x, weight, False, True)), weight, False, True)], [x])
    avoid_faults(model)
    assert sum(node.get_type_name() == "Constant" for node in model.get_ops()) == 1


def test_a_kernel_of_a_convolution_and_of_its_transpose() -> None:
    rng = np.random.default_rng(0)
    kernel = torch.from_numpy(rng.standard_normal((4, 4, 3, 3)).astype(np.float32))

    class Back(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.kernel = torch.nn.Parameter(kernel, requires_grad=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = torch.nn.functional.conv2d(x, self.kernel, padding=1)
            return torch.nn.functional.conv_transpose2d(y, self.kernel, padding=1)

    module, x = Back(), torch.from_numpy(rng.standard_normal((1, 4, 8, 8)).astype(np.float32))
    network = engine_for(Settings(precision="f32", model_caching=False, fallback="raise"), module)
    torch.testing.assert_close(network(x), module(x), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint8])
@pytest.mark.parametrize(("shape", "axes"), [((5, 2, 5), [2]), ((8, 4, 16), [1, 2]), ((7, 3, 4, 5), [1, 3])])
def test_integers_are_reduced_whole(keep: bool, dtype: type, shape: tuple[int, ...], axes: list[int]) -> None:
    x = ops.parameter(list(shape), dtype)
    value = np.random.default_rng(0).integers(0, 7, shape).astype(dtype)
    largest = ops.reduce_max(ops.multiply(x, np.array(1, dtype)), np.array(axes), keep)
    (found,) = answers([ops.subtract(np.array(9, dtype), largest)], x, value)
    np.testing.assert_array_equal(found, 9 - value.max(tuple(axes), keepdims=keep))
