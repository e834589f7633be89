"""Reductions that the CPU device gets wrong are computed in another form, and transposes behind them."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import openvino.opset13 as ops
import pytest
import torch

from ov_backend import Settings
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
