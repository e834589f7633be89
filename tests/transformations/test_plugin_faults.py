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
from ov_backend.transformations.plugin_faults import avoid_faults
from tests.helpers.alone import alone
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


class Reduced(torch.nn.Module):
    """A reduction of one of three axes, and a number for each row of the second axis."""

    def __init__(self, dim: int, keep: bool, product: bool, size: int) -> None:
        super().__init__()
        self.dim, self.keep, self.product = dim, keep, product
        self.rows = torch.nn.Parameter(torch.randn(size))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        rows = self.rows[:, None] if self.keep or self.dim == 0 else self.rows
        mean, largest = x.mean(self.dim, keepdim=self.keep), x.amax(self.dim, keepdim=self.keep).relu()
        length = torch.linalg.vector_norm(x, dim=self.dim, keepdim=self.keep)
        if self.product:
            return mean * rows, largest * rows.exp(), length * rows
        return mean + rows, largest + rows.exp(), length + rows


@pytest.mark.parametrize("product", [False, True])
@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("dim", [0, 2])
def test_a_reduction_with_numbers_for_rows(strict: Callable[..., Settings], dim: int, keep: bool, product: bool) -> None:
    for shape in ((2, 2, 2), (4, 6, 3), (1, 6, 3), (3, 16, 1)):
        _assert_right(strict, Reduced(dim, keep, product, shape[1]), torch.randn(shape))


class Masked(torch.nn.Module):
    """A number for each pixel, and a convolution whose kernel is as large as the picture."""

    def __init__(self, convolution: torch.nn.Module, shape: tuple[int, ...], quotient: bool) -> None:
        super().__init__()
        self.convolution, self.mask, self.quotient = convolution, torch.nn.Parameter(torch.rand(shape) + 0.5), quotient
        self.channels = torch.nn.Parameter(torch.rand(8, 1, 1) + 0.5)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        masked = x / self.mask if self.quotient else x * self.mask
        return self.convolution(masked), self.convolution(x * self.mask.exp() * self.channels)


@pytest.mark.parametrize("quotient", [False, True])
@pytest.mark.parametrize("shape", [(8, 3, 3), (3, 3), (3,), (3, 1), (8, 1, 1)])
def test_a_number_for_each_pixel_before_a_convolution(
    strict: Callable[..., Settings], shape: tuple[int, ...], quotient: bool
) -> None:
    for kind, groups in ((torch.nn.Conv2d, 1), (torch.nn.Conv2d, 8), (torch.nn.Conv2d, 2), (torch.nn.ConvTranspose2d, 1)):
        _assert_right(strict, Masked(kind(8, 8, 3, padding=1, groups=groups), shape, quotient), torch.randn(2, 8, 3, 3))


def _assert_right(strict: Callable[..., Settings], module: torch.nn.Module, x: torch.Tensor) -> None:
    network = engine_for(strict(precision="f32"), module)
    with torch.no_grad():
        for got, expected in zip(network(x), module(x), strict=True):
            torch.testing.assert_close(got, expected, rtol=1e-3, atol=1e-4)


LAYERS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "linear": lambda x: torch.nn.functional.linear(x, _weight(6, 4)),
    "convolution": lambda x: torch.nn.functional.conv2d(x, _weight(6, 3, 2, 2)),
    "transposed convolution": lambda x: torch.nn.functional.conv_transpose2d(x, _weight(3, 6, 2, 2)),
    "product": lambda x: x @ x.mT,
    "enlarged": lambda x: torch.nn.functional.interpolate(x, scale_factor=2.0),
    "normalized": lambda x: torch.nn.functional.instance_norm(x),
    "sum": lambda x: x.sum((2, 3), keepdim=True),
    "sum of all": lambda x: x.sum(),
    "layer and arithmetic": lambda x: torch.nn.functional.linear(x, _weight(6, 4)).abs() + 1,
}


def _weight(*shape: int) -> torch.Tensor:
    return torch.linspace(-1, 1, math.prod(shape)).sin().reshape(shape)


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("for_each_channel", [False, True])
def test_a_constant_is_divided_by_a_result(strict: Callable[..., Settings], layer: str, for_each_channel: bool) -> None:
    class Quotient(torch.nn.Module):
        def __init__(self, size: int) -> None:
            super().__init__()
            self.scale = torch.nn.Parameter(torch.linspace(0.3, 0.7, size), requires_grad=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            result = LAYERS[layer](x)
            return self.scale.reshape(-1, *[1] * max(result.dim() - 2, 0)) / result

    x = torch.randn(2, 3, 4, 4, generator=torch.Generator().manual_seed(0))
    result = LAYERS[layer](x)
    module = Quotient(result.shape[1] if for_each_channel and result.dim() else 1)
    _assert_right(strict, module, x)


QUOTIENTS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "sum and a number": lambda x, w: x.sum(1) / 7,
    "sum and a fraction": lambda x, w: x.sum(1, keepdim=True) / 1.7,
    "mean and a weight": lambda x, w: x.mean(1) / w[:1],
    "largest and a computed weight": lambda x, w: x.amax(1) / w[1:2].exp(),
    "sum and a huge number": lambda x, w: x.sum(1) / 3e38 * 3e38,
    "arithmetic between": lambda x, w: (x.square().sum(1) + 1).sqrt() / 7.5 + x[:, 0],
    "product": lambda x, w: (x @ x.tanh()) / w,
    "integers": lambda x, w: (x * 10).int().sum(1) // 7,
    "true quotient of integers": lambda x, w: (x * 10).int().sum(1) / 7,
    "rounded": lambda x, w: (x.sum(1).round() * 41 / 41).floor(),
    "rounded division": lambda x, w: torch.div(x.sum(1).round() * 41, 41, rounding_mode="floor"),
    "compared": lambda x, w: ((x.sum(1).round().abs() * 41 / 41) >= x.sum(1).round().abs()).float(),
}


@pytest.mark.parametrize("quotient", QUOTIENTS)
def test_a_result_is_divided_by_a_constant(strict: Callable[..., Settings], quotient: str) -> None:
    class Quotient(torch.nn.Module):
        def __init__(self, size: int) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.linspace(0.3, 0.7, size), requires_grad=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return QUOTIENTS[quotient](x, self.weight)

    for size in (2, 7):
        _assert_right(strict, Quotient(size), torch.randn(size, size, size, generator=torch.Generator().manual_seed(0)))


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


@pytest.mark.parametrize("convolution", [torch.nn.Conv1d, torch.nn.Conv2d, torch.nn.Conv3d])
@pytest.mark.parametrize("groups", [1, 2])
def test_a_convolution_of_single_pixels_with_padding_and_steps(
    strict: Callable[..., Settings], convolution: Callable[..., torch.nn.Module], groups: int
) -> None:
    class Steps(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.convolution = convolution(4, 6, 1, stride=2, padding=1, groups=groups).requires_grad_(False)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            y = self.convolution(x.relu() + 1)
            return y, y.flatten(2).mean(-1)

    dimensions = {torch.nn.Conv1d: 1, torch.nn.Conv2d: 2, torch.nn.Conv3d: 3}[convolution]
    for size in (5, 6):
        _assert_right(strict, Steps(), torch.randn(2, 4, *[size] * dimensions))


@pytest.mark.parametrize("mode", ["nearest", "nearest-exact", "linear", "bilinear", "bicubic", "trilinear", "area"])
def test_a_picture_is_resized_to_a_single_pixel(strict: Callable[..., Settings], mode: str) -> None:
    dimensions = {"linear": 1, "trilinear": 3}.get(mode, 2)
    sizes: list[tuple[int, ...]] = [(1, 2, 3)[:dimensions], (3, 1, 1)[:dimensions], (1, 1, 1)[:dimensions]]

    class Resized(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return tuple(torch.nn.functional.interpolate(x, size=list(size), mode=mode) + 1 for size in sizes)

    for size in (2, 5):
        _assert_right(strict, Resized(), torch.randn(2, 3, *[size] * dimensions))


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("stride", [2, 3])
def test_a_convolution_of_one_channel_to_a_column(strict: Callable[..., Settings], stride: int, groups: int) -> None:
    class Column(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.convolution = torch.nn.Conv2d(groups, 16, (2, 3), (1, stride), groups=groups).requires_grad_(False)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            y = self.convolution(x)
            return y, y.relu()

    _assert_right(strict, Column(), torch.randn(2, groups, 5, 3))


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


def test_steps_behind_a_padded_convolution_of_single_pixels(strict: Callable[..., Settings]) -> None:
    class Steps(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.padded = torch.nn.GroupNorm(2, 16), torch.nn.Conv2d(16, 8, 1, padding=1)
            self.steps, self.last = torch.nn.Conv2d(8, 8, 1, 2), torch.nn.Conv2d(8, 8, 1, padding=1, groups=8)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            stepped = self.steps(self.padded(self.norm(x)))
            return stepped.mean((2, 3)), self.last(stepped)

    _assert_right(strict, Steps(), torch.randn(2, 16, 8, 8))


@pytest.mark.parametrize("convolution", [torch.nn.Conv1d, torch.nn.Conv2d])
def test_steps_of_single_pixels_behind_a_part_of_a_split(
    strict: Callable[..., Settings], convolution: Callable[..., torch.nn.Module]
) -> None:
    class Steps(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.convolution = convolution(2, 8, 1, stride=2).requires_grad_(False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.convolution(x.chunk(2, 1)[1] + 0.5)

    _assert_right(strict, Steps(), torch.randn(1, 4, *[4] * (2 if convolution is torch.nn.Conv2d else 1)))


def test_the_exponential_up_to_the_largest_number(strict: Callable[..., Settings]) -> None:
    class Exponential(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return torch.exp(x), torch.expm1(x), torch.exp(x) * 0.5

    x = torch.tensor([[-200.0, -80.0, -1.0, 0.0, 1e-3, 1.0, 88.3, 88.38, 88.5, 88.72, 88.73, 200.0, math.inf, -math.inf]])
    _assert_right(strict, Exponential(), x)
