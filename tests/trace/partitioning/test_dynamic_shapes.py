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


X = torch.randn(5, 7)
#: What is traced, with which input and settings, and by what factor its sizes may grow. Summands are bounded by 2 ** 20, and sums
#: by 2 ** 31 - 1.
FACTORS: dict[str, tuple[Callable[..., Any], torch.Tensor, dict[str, Any], float]] = {
    "floats": (lambda x: (x @ x.t()).relu() + 1, X, {}, math.inf),
    "integers that do not grow with the sizes": (lambda x: x + 1, integers(5, 7), {}, math.inf),
    **{
        f"running sums of {rows}": (lambda x: x.cumsum(0), integers(rows), {}, factor)
        for rows, factor in ((5, 64), (31, 64), (32, 8), (255, 8), (256, 1), (2047, 1))
    },
    "truncated": (lambda x: x.cumsum(0), integers(4096), {"truncate_long_and_double": True}, 64),
    "arithmetic of sizes": (lambda x: x.reshape(x.shape[0] * x.shape[1]) / x.shape[0], X, {}, math.inf),
}


@pytest.mark.parametrize("name", FACTORS)
def test_the_factor_of(name: str) -> None:
    function, x, settings, expected = FACTORS[name]
    assert factor(function, x, **settings) == expected


CONSTANT = torch.tensor([2**40, -1])
REFUSED: dict[str, tuple[Callable[..., Any], torch.Tensor, dict[str, Any], str]] = {
    "integers too large at once": (lambda x: x.cumsum(0), integers(2048), {}, r"cumsum\.default stays .* \(computes in int64"),
    "an operator that stays in PyTorch": (lambda x: x.logsumexp(-1), X, {}, r"logsumexp\.default stays in PyTorch \(OpenVINO"),
    "a disabled operator": (lambda x: x.relu(), X, {"disabled_ops": ("aten.relu",)}, "disabled_ops"),
    "a view of a result": (lambda x: (x.exp(), x.t()), X, {}, "hands out a view"),
    "products of int8": (lambda x: x * x + 1, X.to(torch.int8), {}, ""),
    "sums of uint8": (lambda x: x + x, X.to(torch.uint8), {}, ""),
    "equal int32": (lambda x: x == 2**24, X.int(), {}, ""),
    "remainders of int32": (lambda x: x % 3, X.int(), {}, ""),
    "a returned constant": (lambda x: (x + 1, CONSTANT), X, {}, ""),
}


@pytest.mark.parametrize("name", REFUSED)
def test_it_is_refused(name: str) -> None:
    function, x, settings, why = REFUSED[name]
    with pytest.raises(ConversionError, match=why):
        factor(function, x, **settings)
