"""Reductions, sums and quotients that the CPU device gets wrong are computed in another form, and transposes behind them."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import openvino as ov
import openvino.opset13 as ops
import pytest
import torch
from openvino import opset13, opset15

from ov_backend import Settings
from ov_backend.model import transformations
from tests.helpers.answers import answers, assert_right
from tests.helpers.small import Computing, engine_for


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


class OfRows(torch.nn.Module):
    """A reduction of rows that were a picture, as before the last layer of a classifier."""

    def __init__(self, compute: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.compute, self.numbers = compute, torch.nn.Parameter(torch.randn(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.compute(x.flatten(2).transpose(1, 2), self.numbers)


@pytest.mark.parametrize(
    "compute",
    [
        lambda rows, numbers: rows.mean(1) * numbers,
        lambda rows, numbers: rows.sum(1) + numbers,
        lambda rows, numbers: rows.relu().amax(1, keepdim=True) - numbers,
    ],
    ids=["product", "sum", "difference"],
)
def test_a_reduction_behind_a_transpose(
    strict: Callable[..., Settings], compute: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
) -> None:
    for shape in ((4, 8, 2, 2), (1, 8, 7, 7), (3, 8, 1, 5)):
        assert_right(strict, OfRows(compute), torch.randn(shape))


@pytest.mark.parametrize("product", [False, True])
@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("dim", [0, 2])
def test_a_reduction_with_numbers_for_rows(strict: Callable[..., Settings], dim: int, keep: bool, product: bool) -> None:
    for shape in ((2, 2, 2), (4, 6, 3), (1, 6, 3), (3, 16, 1)):
        assert_right(strict, Reduced(dim, keep, product, shape[1]), torch.randn(shape))


@pytest.mark.parametrize("precision", ["f32", "bf16"])
def test_the_largest_and_smallest_of_infinities(strict: Callable[..., Settings], precision: str) -> None:
    def extremes(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        pooled = torch.nn.functional.max_pool1d(x, 2)
        return x.amax(-1), x.amin(-1, keepdim=True), x.amax(-1) * 0.25, pooled, pooled + 1.0

    most = float(torch.finfo(torch.bfloat16).max)
    infinite = [[-math.inf] * 4, [math.inf] * 4]
    x = torch.tensor([[*infinite, [-math.inf, -most, -most, -most], [math.inf, most, most, most], [1.0, 2.0, -3.0, 0.0]]])
    network = engine_for(strict(precision=precision), Computing(extremes))
    for got, expected in zip(network(x), extremes(x), strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-2 if precision == "bf16" else 1e-6, atol=0)


def test_a_pooling_window_of_bfloat16_behind_a_resize(strict: Callable[..., Settings]) -> None:
    def pooled(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        wide = torch.nn.functional.interpolate(x, scale_factor=2.0)
        return (torch.nn.functional.max_pool1d(wide - 1, 2), wide)

    assert_right(strict, pooled, torch.tensor([[[1.0, -2.0, -math.inf, 3.0]]], dtype=torch.bfloat16))


@pytest.mark.parametrize(
    "reduced",
    [
        lambda x: x.mean(1),
        lambda x: x.amax(1, keepdim=True).squeeze(1) / 1.5,
        lambda x: x.sum(1) * x.amin(1).exp(),
        lambda x: torch.linalg.vector_norm(x, dim=1),
    ],
)
@pytest.mark.parametrize("shape", [(2, 8, 4, 1), (2, 8, 1, 4), (2, 8, 4, 3)])
def test_a_transpose_behind_a_reduction(
    strict: Callable[..., Settings], shape: tuple[int, ...], reduced: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    def added(x: torch.Tensor) -> tuple[torch.Tensor]:
        y = reduced(x).transpose(1, 2)
        return (y + torch.ones(2, *y.shape[1:]),)

    assert_right(strict, lambda x: (reduced(x).transpose(1, 2),), torch.randn(shape))
    assert_right(strict, added, torch.randn(shape))


@pytest.mark.parametrize("shape", [(1, 4, 12), (2, 4, 6)])
def test_a_change_of_shape_behind_a_reduction(strict: Callable[..., Settings], shape: tuple[int, ...]) -> None:
    def reshaped(x: torch.Tensor, dim: int) -> tuple[torch.Tensor, ...]:
        return x.mean(dim).reshape(-1, 1), x.sum(dim).t(), x.mean(dim).t() + 1

    assert_right(strict, lambda x: reshaped(x, 0), torch.randn(shape))
    assert_right(strict, lambda x: reshaped(x, 1), torch.randn(shape))


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
    assert_right(strict, module, x)


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
        assert_right(strict, Quotient(size), torch.randn(size, size, size, generator=torch.Generator().manual_seed(0)))
