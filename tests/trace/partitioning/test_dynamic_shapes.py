"""Graphs with symbolic sizes: which may run in OpenVINO, and by what factor their sizes may grow."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.fx import GraphModule

from ov_backend.core import fx_utils
from ov_backend.core.errors import ConversionError
from ov_backend.trace.partitioning import dynamic_shapes
from tests.helpers.graphs import SETTINGS, traced


def sizes(gm: GraphModule) -> dict[Any, int]:
    """The symbols of a graph and the sizes with which it was traced."""
    symbols: dict[Any, int] = {}
    for node in fx_utils.placeholders(gm):
        value = node.meta["val"]
        for size in value.shape if isinstance(value, torch.Tensor) else ():
            if isinstance(size, torch.SymInt):
                symbols[size.node.expr] = int(size.node.hint)
    return symbols


def factor(function: Callable[..., Any], *inputs: torch.Tensor, **settings: Any) -> float:
    gm = traced(function, *inputs, symbolic=True)
    assert sizes(gm), "no size is symbolic"
    return dynamic_shapes.check(gm, sizes(gm), SETTINGS.replace(**settings))


def integers(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.int64)


def test_floats_may_grow_without_bound() -> None:
    assert factor(lambda x: (x @ x.t()).relu() + 1, torch.randn(5, 7)) == math.inf


def test_integers_that_do_not_grow_with_the_sizes() -> None:
    assert factor(lambda x: x + 1, integers(5, 7)) == math.inf


@pytest.mark.parametrize(
    "rows,expected",
    [(5, 64), (31, 64), (32, 8), (255, 8), (256, 1), (2047, 1)],
)
def test_running_sums_bound_the_factor(rows: int, expected: float) -> None:
    """The bound is 2 ** 20 for each summand, and 2 ** 31 - 1 for the sum."""
    assert factor(lambda x: x.cumsum(0), integers(rows)) == expected


def test_integers_that_are_too_large_at_once() -> None:
    with pytest.raises(ConversionError, match=r"aten\.cumsum\.default stays in PyTorch \(computes in int64"):
        factor(lambda x: x.cumsum(0), integers(2048))


def test_truncation_takes_the_bound_away() -> None:
    assert factor(lambda x: x.cumsum(0), integers(4096), truncate_long_and_double=True) == 64


def test_operators_that_stay_in_pytorch_are_refused() -> None:
    with pytest.raises(ConversionError, match=r"aten\.logsumexp\.default stays in PyTorch \(OpenVINO answers"):
        factor(lambda x: x.logsumexp(-1), torch.randn(5, 7))
    with pytest.raises(ConversionError, match=r"disabled_ops"):
        factor(lambda x: x.relu(), torch.randn(5, 7), disabled_ops=("aten.relu",))


def test_views_of_results_are_refused() -> None:
    with pytest.raises(ConversionError, match="hands out a view"):
        factor(lambda x: (x.exp(), x.t()), torch.randn(5, 7))


def test_arithmetic_of_sizes_is_no_operator_of_tensors() -> None:
    assert factor(lambda x: x.reshape(x.shape[0] * x.shape[1]) / x.shape[0], torch.randn(5, 7)) == math.inf


@pytest.mark.parametrize(
    ("function", "dtype"),
    [
        (lambda x: x * x + 1, torch.int8),
        (lambda x: x + x, torch.uint8),
        (lambda x: x == 2**24, torch.int32),
        (lambda x: x % 3, torch.int32),
    ],
)
def test_integers_that_would_not_be_exact_are_refused(function: Callable[..., Any], dtype: torch.dtype) -> None:
    with pytest.raises(ConversionError):
        factor(function, torch.zeros(5, 7, dtype=dtype))


def test_returned_constants_are_refused() -> None:
    constant = torch.tensor([2**40, -1])
    with pytest.raises(ConversionError):
        factor(lambda x: (x + 1, constant), torch.randn(5, 7))
