"""The CPU adds up numbers of half precision in float32, and rounds the sum once."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import openvino as ov
import pytest
from openvino import opset13, opset15

from ov_backend.model import transformations

COUNT = 1200
INDICES = np.arange(COUNT) % 2
Build = Callable[[ov.Node, ov.Node], ov.Node]

#: What adds up, of ``x`` [COUNT, 1] and ``zeros`` [2, 1].
SUMS: dict[str, Build] = {
    "cum_sum": lambda x, zeros: opset13.cum_sum(x, np.int64(0)),
    "scatter_elements": lambda x, zeros: opset15.scatter_elements_update(zeros, INDICES[:, None], x, 0, "sum"),
    "scatter_nd": lambda x, zeros: opset15.scatter_nd_update(zeros, INDICES[:, None], x, "sum"),
    "reduce_sum": lambda x, zeros: opset13.reduce_sum(x, np.array([0]), False),
    "reduce_mean": lambda x, zeros: opset13.reduce_mean(x, np.array([0]), False),
    "col2im": lambda x, zeros: opset15.col2im(
        opset13.reshape(x, np.array([1, 400, 3]), False), np.array([20, 22]), np.array([20, 20])
    ),
}


@pytest.mark.parametrize("precision", ["bf16", "f32"])
@pytest.mark.parametrize("dtype", ["bf16", "f16"])
@pytest.mark.parametrize("name", SUMS)
def test_a_sum_of_halves_is_rounded_once(name: str, dtype: str, precision: str) -> None:
    def model(dtype: str) -> ov.Model:
        x, zeros = opset13.parameter([COUNT, 1], np.float32), opset13.parameter([2, 1], np.float32)
        result = SUMS[name](opset13.convert(x, dtype), opset13.convert(zeros, dtype))
        assert result.get_element_type().to_string() == dtype
        return ov.Model([opset13.convert(result, "f32")], [x, zeros])

    def answer(model: ov.Model) -> np.ndarray:
        given = [np.full([COUNT, 1], 1.0625, np.float32), np.zeros([2, 1], np.float32)]
        return np.asarray(ov.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})(given)[0])

    halves = model(dtype)
    transformations.apply(halves, precision)
    np.testing.assert_allclose(answer(halves), answer(model("f32")), rtol=2**-8)


def test_a_scatter_that_only_moves_keeps_its_type() -> None:
    x, zeros = opset13.parameter([COUNT, 1], ov.Type.bf16), opset13.parameter([2, 1], ov.Type.bf16)
    node = opset15.scatter_elements_update(zeros, INDICES[:, None], x, 0, "none")
    transformations.apply(ov.Model([node], [x, zeros]), "bf16")
    assert node.get_element_type() == ov.Type.bf16
