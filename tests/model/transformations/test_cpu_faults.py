"""What the CPU device gets wrong in one form is computed in another."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import openvino as ov
import openvino.opset13 as ops
import pytest
import torch

from ov_backend import Settings
from ov_backend.model.transformations.cpu_faults import avoid_faults
from tests.helpers.alone import alone
from tests.helpers.answers import answers, assert_right
from tests.helpers.small import engine_for


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


ATTENTION: dict[str, Callable[..., torch.Tensor]] = {
    "product": lambda a, x: a * x.relu() + a,
    "computed": lambda a, x: (a * 2).exp() * x.relu() + (a * 2).exp(),
    "joined": lambda a, x: torch.cat([a * x.relu(), a], -1),
    "parts": lambda a, x: a[..., :2] * a[..., 2:].relu() + a[..., 2:],
}


WEIGHTS: dict[str, Callable[..., torch.Tensor]] = {
    "softmax": lambda x, y: torch.softmax(x @ y.mT, -1) @ x,
    "masked": lambda x, y: torch.softmax((x @ y.mT).masked_fill(y > 0, -1e9), -1) @ x,
    "arithmetic": lambda x, y: torch.softmax(x @ y.mT, -1).sqrt().tanh() @ x,
    "one operator": lambda x, y: torch.nn.functional.scaled_dot_product_attention(x, y, x),
}


class Attention(torch.nn.Module):
    """Attention whose result is read by ``reading``."""

    def __init__(self, weights: str, reading: str) -> None:
        super().__init__()
        self.weights, self.reading = WEIGHTS[weights], ATTENTION[reading]

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return self.reading(self.weights(x, y), x)


def compare_attention(weights: str, precision: str, tolerance: float) -> None:
    """Every reading of the attention's result agrees with PyTorch's."""
    inputs = torch.randn(2, 2, 3, 4, 4)
    for reading in ATTENTION:
        module = Attention(weights, reading)
        network = engine_for(Settings(precision=precision, model_caching=False, fallback="raise"), module)
        torch.testing.assert_close(network(*inputs), module(*inputs), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("precision, tolerance", [("f32", 1e-3), ("bf16", 0.1)])
@pytest.mark.parametrize("weights", WEIGHTS)
def test_attention_that_is_read_twice_is_compiled(weights: str, precision: str, tolerance: float) -> None:
    """In a process of its own: the device would end it."""
    alone(compare_attention, weights, precision, tolerance)


LAYERS: dict[str, Callable[..., torch.Tensor]] = {
    "sum": lambda y, x: y + 0.95 * x,
    "difference": lambda y, x: y - x.relu(),
    "first": lambda y, x: x.exp() * y,
    "condition": lambda y, x: torch.where(x > 0, y, x),
    "broadcast": lambda y, x: torch.maximum(y, x[:, :1].exp()),
    "arithmetic": lambda y, x: y.relu() / (x.abs() + 1),
    "views": lambda y, x: y.view(2, 4, 8).view(8, 8) + x.exp(),
    "also a result": lambda y, x: torch.stack([y, y + x.exp()]),
}


class Layers(torch.nn.Module):
    """Two layers with arithmetic between, whose result is read by ``reading``."""

    def __init__(self, between: Callable[..., torch.Tensor], reading: str) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(8, 16), torch.nn.Linear(16, 8)
        self.between, self.reading = between, LAYERS[reading]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.reading(self.second(self.between(self.first(x))), x)


def compare_layers(precision: str, dtype: torch.dtype, tolerance: float) -> None:
    """Every reading of the layers' result agrees with PyTorch's."""
    x = torch.randn(8, 8)
    for reading in LAYERS:
        for between in (torch.clone, torch.tanh, torch.nn.functional.gelu):
            module = Layers(between, reading).requires_grad_(False)
            want = module(x)
            network = engine_for(Settings(precision=precision, model_caching=False, fallback="raise"), module.to(dtype))
            torch.testing.assert_close(network(x.to(dtype)).float(), want, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    "precision, dtype, tolerance", [("f32", torch.float32, 1e-3), ("f32", torch.float16, 0.01), ("bf16", torch.float32, 0.1)]
)
def test_layers_of_two_axes_are_read_beside_other_arithmetic(precision: str, dtype: torch.dtype, tolerance: float) -> None:
    """In a process of its own: the device would end it."""
    alone(compare_layers, precision, dtype, tolerance)


@pytest.mark.parametrize(
    "shape, between, reading",
    [
        ((8, 8), torch.tanh, lambda y, x: y + x),
        ((2, 4, 8), torch.tanh, LAYERS["sum"]),
        ((8, 8), torch.nn.functional.silu, LAYERS["sum"]),
    ],
    ids=["an input", "three axes", "not one operator"],
)
def test_layers_that_the_device_compiles_are_not_rolled(
    shape: tuple[int, ...], between: Callable[..., torch.Tensor], reading: Callable[..., torch.Tensor]
) -> None:
    module = Layers(between, "sum").eval().requires_grad_(False)
    module.reading = reading
    model = ov.convert_model(module, example_input=torch.randn(shape), input=[shape])
    avoid_faults(model)
    assert not any(node.get_type_name() == "Roll" for node in model.get_ops())


def compare_swapped_attention() -> None:
    """The sum agrees with PyTorch's."""
    module, (x, y, z) = Attention("softmax", "product"), (*torch.randn(2, 2, 3, 8, 4), torch.randn(2, 8, 3, 4))
    for weights in (WEIGHTS["softmax"], WEIGHTS["one operator"]):
        module.weights, module.reading = weights, lambda a, x: a.transpose(1, 2) + z.exp() * x.transpose(1, 2).exp()
        network = engine_for(Settings(precision="f32", model_caching=False, fallback="raise"), module)
        torch.testing.assert_close(network(x, y), module(x, y), rtol=1e-3, atol=1e-3)


def test_attention_with_its_heads_swapped_is_read_beside_other_arithmetic() -> None:
    """In a process of its own: the device would end it."""
    alone(compare_swapped_attention)


class NormalizedLess(torch.nn.Module):
    """A group normalisation of two axes less another value."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.GroupNorm(2, 4)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return self.norm(x) - y


def compare_difference() -> None:
    """The difference agrees with PyTorch's."""
    module, inputs = NormalizedLess().requires_grad_(False), torch.randn(2, 3, 4)
    network = engine_for(Settings(precision="f32", model_caching=False, fallback="raise"), module)
    torch.testing.assert_close(network(*inputs), module(*inputs), rtol=1e-3, atol=1e-4)


def test_a_group_normalization_of_two_axes() -> None:
    alone(compare_difference)


@pytest.mark.parametrize("mode", ["nearest", "nearest-exact", "linear", "bilinear", "bicubic", "trilinear", "area"])
def test_a_picture_is_resized_to_a_single_pixel(strict: Callable[..., Settings], mode: str) -> None:
    dimensions = {"linear": 1, "trilinear": 3}.get(mode, 2)
    sizes: list[tuple[int, ...]] = [(1, 2, 3)[:dimensions], (3, 1, 1)[:dimensions], (1, 1, 1)[:dimensions]]

    def resized(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(torch.nn.functional.interpolate(x, size=list(size), mode=mode) + 1 for size in sizes)

    for size in (2, 5):
        assert_right(strict, resized, torch.randn(2, 3, *[size] * dimensions))


@pytest.mark.parametrize("size", [4, 16, 17])
def test_attention_to_constant_keys(strict: Callable[..., Settings], size: int) -> None:
    class Attention(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.keys = torch.nn.Parameter(torch.randn(2, size, 8), requires_grad=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.softmax(x @ self.keys.mT * 0.5, -1) @ x

    torch.manual_seed(0)
    module, x = Attention(), torch.randn(2, size, 8)
    for precision, tolerance in (("f32", 1e-3), ("bf16", 0.05)):
        torch.testing.assert_close(engine_for(strict(precision=precision), module)(x), module(x), rtol=tolerance, atol=tolerance)


def test_the_exponential_up_to_the_largest_number(strict: Callable[..., Settings]) -> None:
    x = torch.tensor([[-200.0, -80.0, -1.0, 0.0, 1e-3, 1.0, 88.3, 88.38, 88.5, 88.72, 88.73, 200.0, math.inf, -math.inf]])
    assert_right(strict, lambda x: (torch.exp(x), torch.expm1(x), torch.exp(x) * 0.5), x)


@pytest.mark.parametrize("factor", [math.inf, -math.inf, 1e-30, 3e38])
def test_an_extreme_factor_behind_other_arithmetic(strict: Callable[..., Settings], factor: float) -> None:
    def scaled(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (x + 1.5) * factor, (-1.5 - x) * factor, x * 1e25 * factor, x * 1e-25 * factor, torch.conv1d(x, x[:2]) * factor

    assert_right(strict, scaled, torch.tensor([[[-2.0, -0.5]], [[0.25, 3.0]], [[1.0, math.inf]]]))


def test_one_of_several_results_as_a_boolean(strict: Callable[..., Settings]) -> None:
    def chosen(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        smallest, row = torch.sort(x[:, :1], stable=True).values, x.split(1)[0]
        part = row.split(1)[0]
        return smallest.bool(), smallest * 2, row.bool(), row * 3, torch.logical_xor(part, part), part.logical_not()

    assert_right(strict, chosen, torch.tensor([[1.0, 0.0], [0.0, -2.0]]))


def test_constants_are_rounded_to_bfloat16() -> None:
    numbers = torch.cat([torch.rand(64), torch.tensor([70000.0, 1e-40, math.inf, -math.inf, 3.4e38])])
    for constant in (numbers, numbers[:65].double(), torch.tensor([70000, 257, -70001])):
        x = ops.parameter([len(constant)], np.float32)
        rounded = ops.convert(ops.constant(constant.numpy()), "bf16")
        found, _ = answers([ops.convert(rounded, "f32"), ops.abs(x)], x, np.zeros(len(constant), np.float32))
        np.testing.assert_allclose(found, constant.to(torch.bfloat16).float().numpy(), rtol=0, atol=1e-38)


@pytest.mark.parametrize("size", [1000, 1001])
def test_results_are_rounded_to_bfloat16(size: int) -> None:
    def half(x: torch.Tensor) -> torch.Tensor:
        return (x + 1).bfloat16()

    x = torch.cat([torch.randn(size - 4), torch.tensor([3.4e38, math.inf, math.nan, 1e-3])])
    found = torch.compile(half, backend="openvino_fx", options={"precision": "f32"}, dynamic=size % 2 == 1)(x)
    torch.testing.assert_close(found, half(x), rtol=0, atol=0, equal_nan=True)


def test_a_layer_under_autocast_is_as_exact_as_in_pytorch() -> None:
    layer, x = torch.nn.Linear(64, 64), torch.rand(8, 64)

    def autocast(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return layer(x)

    with torch.no_grad():
        exact, eager, found = (f(x).float() for f in (layer, autocast, torch.compile(autocast, backend="openvino_fx")))
    assert (found - exact).abs().max() <= 1.2 * (eager - exact).abs().max()


def test_the_error_function_of_small_numbers() -> None:
    x, value = ops.parameter([9], np.float32), torch.tensor([1e-9, 1e-7, -1e-6, 1e-4, 0.0, 0.0099, -0.0101, 0.5, 4.0])
    (found,) = answers([ops.erf(x)], x, value.numpy())
    np.testing.assert_allclose(found, value.erf().numpy(), rtol=2e-5)
    (found,) = answers([ops.add(ops.erf(x), np.float32(1))], x, value.numpy())
    np.testing.assert_allclose(found, (value.erf() + 1).numpy(), rtol=1e-5)
