"""An integer result is exact, or its operator stays in PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from ov_backend.core.settings import operator_name
from ov_backend.model import compiler
from ov_backend.trace.capture.trace import Captured
from ov_backend.trace.partitioning.exact_integers import inexact
from ov_backend.trace.partitioning.partitioner import unsupported
from tests.helpers.graphs import SETTINGS, names, traced

Function = Callable[..., torch.Tensor]
NEAR = torch.tensor([2**24, 2**24 + 1, 2**24 + 3, -7, 2**25 + 1, 1], dtype=torch.int32)
SMALL = torch.tensor([-5, 7, -1, 3, 127, -128], dtype=torch.int8)
BYTES = torch.tensor([0, 1, 200, 255, 128, 3], dtype=torch.uint8)
SHORT = torch.tensor([-5, 32767, -32768, 3, 300, 0], dtype=torch.int16)
LONG = torch.tensor([-5, 7, -1, 3, 1000, -1000])

CASES: dict[str, tuple[Function, torch.Tensor]] = {
    "a floor division of negative numbers": (lambda x: x // 3, LONG),
    "a floor division of int32": (lambda x: x // 3, NEAR),
    "a truncated division of int32": (lambda x: torch.div(x, 1, rounding_mode="trunc"), NEAR),
    "a sum and a large number": (lambda x: x.sum() + 16777217, SMALL),
    "a sum of a mask, moved, and a large number": (lambda x: 16777217 - (x > 3).sum(0, keepdim=True).reshape(1, 1), SMALL),
    "a remainder of int32": (lambda x: x % 127, NEAR),
    "a remainder by a large number": (lambda x: x % 16777217, LONG),
    "a float remainder of int32": (lambda x: x % -1.5, NEAR),
    "the largest of int32": (lambda x: x.max(), NEAR),
    "a choice by comparison in int32": (lambda x: torch.where(x > x.flip(0), x, 0), NEAR),
    "equal int32": (lambda x: x == 16777217, NEAR),
    "a limit in int32": (lambda x: x.clamp(-5, 16777217), NEAR),
    "relu of int32": (lambda x: x.relu(), NEAR),
    "a square in int32": (lambda x: x**2, NEAR),
    "a sum that float32 does not hold": (lambda x: (x * 2**19 + 1).sum(), torch.arange(64)),
    "int8 that wraps in a sum": (lambda x: x + 3, SMALL),
    "int8 that wraps in a product": (lambda x: x * x, SMALL),
    "the absolute value of the smallest int8": (lambda x: x.abs(), SMALL),
    "uint8 below zero": (lambda x: x - 3, BYTES),
    "uint8 plus a negative number": (lambda x: x + -2, BYTES),
    "uint8 from a number": (lambda x: 1 - x, BYTES),
    "uint8 negated": (lambda x: -x, BYTES),
    "uint8 that wraps in a product": (lambda x: x * 3, BYTES),
    "int16 compared after it wrapped": (lambda x: (x + x) > 5, SHORT),
    "int32 as int8": (lambda x: x.to(torch.int8), NEAR),
    "uint8 that wraps behind a remainder": (lambda x: x % -2 * 127, BYTES),
    "uint8 that wraps behind a filled part": (lambda x: torch.full_like(x, -2) * (x % 4), BYTES),
    "negative numbers as uint8": (lambda x: x.to(torch.uint8), LONG),
    "limits that are no whole numbers": (lambda x: x.clamp(max=0.5), LONG),
    "a filled mask": (lambda x: (x > 3).masked_fill(x < 0, 1), LONG),
    "a choice by a small number": (lambda x: torch.where(x.to(torch.int16) != 1, x, x + 1), NEAR),
    "what a small number masks": (lambda x: x.masked_fill(x.to(torch.int16) == 1, 5), NEAR),
    "a place that a small number masks": (lambda x: x.index_put((x.to(torch.int16) == 1,), x.new_tensor(5)), NEAR),
    "the greatest common divisor": (lambda x: torch.gcd(x, x.flip(0)) + 1, NEAR),
}


def run(function: Function, x: torch.Tensor) -> Any:
    """The function's result after a compile, with what must stay in PyTorch in PyTorch."""
    captured = Captured(traced(lambda x: (function(x),), x), (), ("x",), {})
    return compiler.Compiler(captured, SETTINGS).compile().program.compile({}, SETTINGS)([x])[0]


@pytest.mark.parametrize("name", CASES)
def test_it_is_exact(name: str) -> None:
    function, x = CASES[name]

    def surrounded(x: torch.Tensor) -> Any:
        return function(x).float().sin() + x.sum(), function(x)

    gm = traced(surrounded, x)
    captured = Captured(gm, (), ("x",), {})
    result = compiler.Compiler(captured, SETTINGS).compile().program.compile({}, SETTINGS)([x])[1]
    assert result.dtype == function(x).dtype
    assert torch.equal(result, function(x))


KEPT: dict[str, tuple[Function, torch.Tensor]] = {
    "positions": (lambda x: x + torch.arange(6), LONG),
    "a comparison of token numbers": (lambda x: x == 49407, LONG),
    "the first of the largest tokens": (lambda x: x.to(torch.int32).argmax(), LONG),
    "a running sum of a mask": (lambda x: x.cumsum(0) - 1, LONG),
    "bytes as floats": (lambda x: x.float() - 128, BYTES),
    "a product in int32": (lambda x: x * 3 + x, NEAR),
    "int8 chosen and moved": (lambda x: torch.where(x > 3, x, x.flip(0)), SMALL),
    "a remainder of token numbers": (lambda x: x % 7, LONG),
}


@pytest.mark.parametrize("name", KEPT)
def test_what_is_exact_runs_in_openvino(name: str) -> None:
    function, x = KEPT[name]
    gm = traced(function, x)
    assert not unsupported(gm, SETTINGS)
    assert torch.equal(run(function, x), function(x))


def test_graphs_without_integers_are_not_looked_at() -> None:
    assert inexact(traced(lambda x: x * 2, torch.ones(3)), False) == {}


def test_a_choice_of_large_numbers_stays_with_the_comparison_that_openvino_would_compute_it_with() -> None:
    gm = traced(CASES["a choice by comparison in int32"][0], NEAR)
    stays = {str(node.target) for node in inexact(gm, False)}
    assert {"aten.gt.Tensor", "aten.where.self"} <= stays
    assert set(names(gm)) > stays


def test_a_scalar_expanded_to_a_scalar_does_not_end_the_process() -> None:
    gm = traced(lambda x: x.expand(()).clamp(max=127), torch.tensor(3, dtype=torch.int32))
    assert "aten.expand.default" in {operator_name(node.target) for node in unsupported(gm, SETTINGS)}


INFINITE, BROAD = torch.tensor([float("inf"), float("nan"), 1e12, -7.0]), torch.tensor([1.7e18, 5.0, -7.25, 3e9])
DIVISORS = torch.tensor([float("inf"), 2.0, float("inf")])
#: What is computed with floats, or of them.
FLOATS: dict[str, tuple[Function, torch.Tensor]] = {
    "a quotient cut off": (lambda x: torch.div(x, 0.5, rounding_mode="trunc").sin() + x, INFINITE),
    "a quotient rounded down": (lambda x: torch.div(x, 0.5, rounding_mode="floor").sin() + x, INFINITE),
    "a remainder of large floats": (lambda x: (x % 127.0).sin() + x, BROAD),
    "a remainder by a negative float": (lambda x: (x % -3.5).sin() + x, BROAD),
    "a remainder of integers by infinity": (lambda x: (x % DIVISORS).sin() + x, torch.tensor([114, 3, 0], dtype=torch.uint8)),
    "int8 made of floats": (lambda x: x.sin().to(torch.int8) + (x.to(torch.int8) ** 2), torch.tensor([-125.0, 3.0])),
    "bytes made of floats": (lambda x: (x * 127.5 + 128).clamp(0, 255).to(torch.uint8) * 2, torch.linspace(-1, 1, 6)),
    "a number that float16 does not hold": (lambda x: x * 16777217 + x, torch.tensor([2.0**-10, 0.0, 1e-6], dtype=torch.float16)),
}


@pytest.mark.parametrize("name", FLOATS)
def test_what_is_computed_with_floats_is_pytorch_s(name: str) -> None:
    function, x = FLOATS[name]
    torch.testing.assert_close(run(function, x), function(x), equal_nan=True)


@pytest.mark.parametrize(
    "quantizing",
    [
        lambda x: (x * 127.5 + 128).clamp(0, 255).to(torch.uint8),
        lambda x: torch.zeros_like(x, dtype=torch.uint8),
        lambda x: x.relu().clamp(0, 6).to(torch.int8),
    ],
)
@pytest.mark.parametrize(
    ("function", "values"), [(lambda m: m + m, BYTES), (lambda m: m == 2**24, NEAR), (lambda m: m % 1000, NEAR)]
)
def test_a_picture_made_of_floats_leaves_other_integers_exact(
    quantizing: Function, function: Function, values: torch.Tensor
) -> None:
    x = torch.linspace(-1, 1, 6)
    gm = traced(lambda x, m: (quantizing(x), function(m)), x, values)
    captured = Captured(gm, (), ("x", "m"), {})
    results = compiler.Compiler(captured, SETTINGS).compile().program.compile({}, SETTINGS)([x, values])
    assert torch.equal(results[0], quantizing(x))
    assert torch.equal(results[1], function(values))
