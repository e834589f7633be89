"""MVN operators over odd numbers of elements are decomposed, whichever way they are written."""

from __future__ import annotations

import numpy as np
import openvino as ov
import openvino.opset13 as ops
import pytest

from ov_backend.core import devices
from ov_backend.model.transformations.normalizations import decompose_odd_normalizations


def normalised(x: np.ndarray, axes: tuple[int, ...], variance: bool, mode: str) -> tuple[ov.Model, np.ndarray]:
    """A model of one MVN operator, and what it should answer."""
    parameter = ops.parameter(list(x.shape), np.float32)
    model = ov.Model([ops.mvn(parameter, np.array(axes), variance, 1e-2, mode).output(0)], [parameter])
    expected = x - x.mean(axes, keepdims=True)
    if variance:
        inside = mode == "inside_sqrt"
        expected /= np.sqrt(x.var(axes, keepdims=True) + 1e-2 * inside) + 1e-2 * (not inside)
    return model, expected


def operators(model: ov.Model) -> set[str]:
    return {node.get_type_name() for node in model.get_ordered_ops()}


@pytest.mark.parametrize("mode", ["inside_sqrt", "outside_sqrt"])
@pytest.mark.parametrize(("axes", "variance"), [((-1,), True), ((1, 2), True), ((-1,), False)])
def test_the_parts_compute_the_same(axes: tuple[int, ...], variance: bool, mode: str) -> None:
    x = np.random.default_rng(0).standard_normal((3, 5, 19), np.float32) + 2
    model, expected = normalised(x, axes, variance, mode)
    decompose_odd_normalizations(model)
    model.validate_nodes_and_infer_types()
    assert "MVN" not in operators(model)
    compiled = devices.core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    assert not any("MVN" in str(node.get_rt_info()["layerType"].value) for node in compiled.get_runtime_model().get_ops())
    np.testing.assert_allclose(compiled(x)[0], expected, rtol=1e-4, atol=1e-5)


def test_multiples_of_sixteen_stay_one_operator() -> None:
    model, _ = normalised(np.zeros((2, 3, 32), np.float32), (-1,), True, "inside_sqrt")
    decompose_odd_normalizations(model)
    assert "MVN" in operators(model)
