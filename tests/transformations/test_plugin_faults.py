"""What the CPU device gets wrong in one form is computed in another."""

from __future__ import annotations

import numpy as np
import openvino as ov
import openvino.opset13 as ops
import pytest

from ov_backend.transformations.plugin_faults import avoid_faults


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


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint8])
@pytest.mark.parametrize(("shape", "axes"), [((5, 2, 5), [2]), ((8, 4, 16), [1, 2]), ((7, 3, 4, 5), [1, 3])])
def test_integers_are_reduced_whole(keep: bool, dtype: type, shape: tuple[int, ...], axes: list[int]) -> None:
    x = ops.parameter(list(shape), dtype)
    value = np.random.default_rng(0).integers(0, 7, shape).astype(dtype)
    largest = ops.reduce_max(ops.multiply(x, np.array(1, dtype)), np.array(axes), keep)
    (found,) = answers([ops.subtract(np.array(9, dtype), largest)], x, value)
    np.testing.assert_array_equal(found, 9 - value.max(tuple(axes), keepdims=keep))
