"""Normalisations in the form that the CPU device computes rightly give what PyTorch gives."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import openvino as ov
import openvino.opset13 as ops
import pytest
import torch

from ov_backend import Settings
from ov_backend.core import devices
from ov_backend.model.transformations.normalizations import decompose_group_norms, decompose_odd_normalizations
from tests.helpers.small import engine_for

Strict = Callable[..., Settings]
CASES = [  # input shape, groups
    ((2, 64, 12, 10), 32),
    ((1, 32, 7, 9), 32),  # a channel a group
    ((3, 12, 5, 5), 1),  # one group
    ((2, 32, 1, 1), 8),  # one pixel
    ((2, 16, 33), 4),
    ((4, 16, 2, 2), 2),
    ((1, 8, 3, 4, 5), 2),
    ((4, 24), 6),  # no pixels at all
]


def relative_error(got: torch.Tensor, expected: torch.Tensor) -> float:
    return float((got - expected).norm() / expected.norm())


def norm(groups: int, channels: int, affine: bool = True) -> torch.nn.Module:
    module = torch.nn.GroupNorm(groups, channels, eps=1e-6, affine=affine)
    if affine:
        torch.nn.init.normal_(module.weight, 1.0, 0.5)
        torch.nn.init.normal_(module.bias)
    return module


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("shape,groups", CASES, ids=str)
def test_group_norm(strict: Strict, shape: tuple[int, ...], groups: int, affine: bool) -> None:
    module = norm(groups, shape[1], affine)
    x = torch.randn(shape) * 3 + torch.randn(shape[1]).reshape(-1, *[1] * (len(shape) - 2))
    network = engine_for(strict(), module)
    assert relative_error(network(x), module(x)) < 1e-5
    assert network.statistics.calls == 1


@pytest.mark.parametrize("mean", [0.0, 10.0, 1000.0])
def test_group_norm_of_channels_with_a_large_mean(strict: Strict, mean: float) -> None:
    module = norm(8, 32)
    x = torch.randn(2, 32, 16, 16) + torch.randn(32, 1, 1) * mean
    assert relative_error(engine_for(strict(), module)(x), module.double()(x.double()).float()) < 1e-4


def test_group_norm_of_a_constant_is_its_bias(strict: Strict) -> None:
    module = norm(8, 32)
    x = torch.full((1, 32, 64, 64), 0.7)
    assert torch.allclose(engine_for(strict(), module)(x)[0, :, 5, 5], module.bias, atol=1e-3)


@pytest.mark.parametrize("mean,tolerance", [(0.0, 1e-2), (10.0, 2e-2)])
def test_group_norm_between_convolutions_in_bfloat16(strict: Strict, mean: float, tolerance: float) -> None:
    first, last = torch.nn.Conv2d(8, 32, 3), torch.nn.Conv2d(32, 8, 1)
    first.bias.data.normal_(0.0, 1.0).mul_(mean)
    module = torch.nn.Sequential(first, norm(8, 32), torch.nn.SiLU(), last)
    x = torch.randn(2, 8, 24, 20)
    assert relative_error(engine_for(strict(precision="bf16"), module)(x), module(x)) < tolerance


def decomposed(shape: list[int], corrected: bool) -> list[str]:
    """The operators of a model with one group normalisation after the transformation."""
    x = ops.parameter(shape, np.float32)
    weight, bias = (ops.constant(np.ones(8, np.float32)) for _ in range(2))
    norm = ops.group_normalization(x, weight, bias, 4, 1e-5)
    norm.set_friendly_name("norm")
    model = ov.Model([norm], [x])
    decompose_group_norms(model, corrected)
    model.validate_nodes_and_infer_types()
    assert model.get_results()[0].input_value(0).get_node().get_friendly_name() == "norm"
    return [op.get_type_name() for op in model.get_ordered_ops()]


@pytest.mark.parametrize("shape", [[2, 8, 5, 5], [1, 8, 9]], ids=str)
def test_group_norms_of_pixels_are_decomposed(shape: list[int]) -> None:
    assert "GroupNormalization" not in decomposed(shape, True)


def test_only_the_corrected_form_has_a_mean_of_the_deviations() -> None:
    assert decomposed([2, 8, 5, 5], True).count("ReduceMean") == decomposed([2, 8, 5, 5], False).count("ReduceMean") + 2


@pytest.mark.parametrize("shape", [[2, 8], [2, 8, -1, 5], [-1, 8, 5, 5]], ids=str)
def test_group_norms_without_pixels_or_with_open_sizes_stay(shape: list[int]) -> None:
    assert "GroupNormalization" in decomposed(shape, True)


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
