"""Bounds of integers: what may exceed int32 stays in PyTorch, and nothing else."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch

from ov_backend.core import fx_utils
from ov_backend.trace.partitioning.int64_range import INPUT_BOUND, bounds, fits, largest, too_large
from tests.helpers.graphs import names, node_of, traced

aten = torch.ops.aten
INT32 = (1 << 31) - 1


def integers(*shape: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype)


def bound(function: Callable[..., Any], *inputs: Any, wide: bool = False) -> float:
    """The bound of the last operator of a graph."""
    gm = traced(function, *inputs)
    return bounds(gm, wide)[fx_utils.operators(gm)[-1]]


def in_pytorch(function: Callable[..., Any], *inputs: Any, wide: bool = False) -> list[str]:
    return [str(node.target) for node in too_large(traced(function, *inputs), wide)]


RULES: dict[str, tuple[Callable[[torch.Tensor], Any], float]] = {
    "a view": (lambda x: x.view(-1), INPUT_BOUND),
    "a concatenation": (lambda x: torch.cat([x, x]), INPUT_BOUND),
    "a selection": (lambda x: x[0], INPUT_BOUND),
    "the absolute value": (lambda x: x.abs(), INPUT_BOUND),
    "a sum of two": (lambda x: x + x, 2 * INPUT_BOUND),
    "a sum with a number": (lambda x: x + 5, INPUT_BOUND + 5),
    "a multiple in a sum": (lambda x: torch.add(x, x, alpha=3), 4 * INPUT_BOUND),
    "a difference": (lambda x: x - 7, INPUT_BOUND + 7),
    "a product with a number": (lambda x: x * -3, 3 * INPUT_BOUND),
    "a product of two": (lambda x: x * x, INPUT_BOUND**2),
    "a product with zero": (lambda x: x * x * x * 0, 0),
    "an integer quotient": (lambda x: x // 7, INPUT_BOUND),
    "a quotient by a fraction": (lambda x: torch.div(x, 0.5, rounding_mode="floor"), math.inf),
    "a remainder": (lambda x: x % 7, 7),
    "bits of a mask": (lambda x: x & 255, 255),
    "bits of a mask beyond int32": (lambda x: x & 0xFFFFFFFF, 0xFFFFFFFF),
    "bits of two": (lambda x: x & (x - 1), 2 * INPUT_BOUND),
    "bytes of floats": (lambda x: x.float().to(torch.int8), 128),
    "a sum of all": (lambda x: x.sum(), 6 * INPUT_BOUND),
    "a sum of a dimension": (lambda x: x.sum(1), 3 * INPUT_BOUND),
    "a running sum": (lambda x: x.cumsum(1), 6 * INPUT_BOUND),
    "a position": (lambda x: x.argmax(), 6),
    "a count": (lambda x: torch.count_nonzero(x), 6),
    "a comparison": (lambda x: x > 3, 1),
    "zeros": (lambda x: torch.zeros_like(x), 1),
    "a constant": (lambda x: torch.full((2, 3), 9), 9),
    "a choice": (lambda x: torch.where(x > 0, x, 3 * x), 3 * INPUT_BOUND),
    "a limited value": (lambda x: x.clamp(-5, 9), INPUT_BOUND),
    "an operator without a rule": (lambda x: x.prod(), math.inf),
}


@pytest.mark.parametrize("name", RULES)
def test_the_bound_of(name: str) -> None:
    function, expected = RULES[name]
    assert bound(function, integers(2, 3)) == expected


def test_bounds_hold_for_values_at_the_bound() -> None:
    """Each bound is no less than what the operator gives for the largest inputs."""
    for sign in (1, -1):
        x = torch.full((2, 3), sign * INPUT_BOUND)
        for name, (function, expected) in RULES.items():
            assert float(function(x).abs().max() if function(x).dtype is not torch.bool else 1) <= expected, name


def test_sorted_values_and_their_positions() -> None:
    gm = traced(lambda x: torch.topk(x, 2), integers(2, 3))
    assert bounds(gm, False)[node_of(gm, "aten.topk")] == INPUT_BOUND
    gm = traced(lambda x: torch.topk(x, 2), torch.randn(2, 3))
    assert bounds(gm, False)[node_of(gm, "aten.topk")] == 6, "of floats only the positions are integers"
    selections = [node for node in gm.graph.nodes if node.target is operator.getitem]
    assert [bounds(gm, False)[node] for node in selections] == [6, 6]


@pytest.mark.parametrize(
    "dtype,expected",
    [
        (torch.int64, INPUT_BOUND),
        (torch.int32, 2.0**31),
        (torch.int8, 128),
        (torch.uint8, 256),
        (torch.bool, 1),
        (torch.float32, math.inf),
    ],
    ids=str,
)
def test_the_bound_of_inputs(dtype: torch.dtype, expected: float) -> None:
    assert bound(lambda x: x.view(-1), integers(2, dtype=dtype)) == expected


def test_wide_inputs_have_no_bound() -> None:
    assert bound(lambda x: x.view(-1), integers(2), wide=True) == math.inf
    assert in_pytorch(lambda x: x + 1, integers(2), wide=True) == ["aten.add.Tensor"]


@pytest.mark.parametrize(
    "constant,expected",
    [
        ([3, -9], 9),
        ([True, False], 1),
        ([torch.iinfo(torch.int64).min], 2.0**63),
        ([], math.inf),
    ],
    ids=str,
)
def test_the_bound_of_constants(constant: list[Any], expected: float) -> None:
    value = torch.tensor(constant)
    gm = traced(lambda x: (x.sum(), torch.ops.aten.alias(value)), integers(2))
    (node,) = (node for node in gm.graph.nodes if node.op == "get_attr")
    assert bounds(gm, False)[node] == expected


def indexed_by(x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    return aten.index(x, [positions.view(2, 1).unsqueeze(0)])


X, POSITIONS = torch.randn(5, 3), integers(2)
LIMIT = INT32 - INPUT_BOUND
#: What is traced, with which inputs, and what stays in PyTorch of it.
IN_PYTORCH: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...], list[str]]] = {
    "the largest int32": (lambda x: x + LIMIT, (POSITIONS,), []),
    "one more": (lambda x: x + (LIMIT + 1), (POSITIONS,), ["aten.add.Tensor"]),
    "what reads a large value": (lambda x: (x * x).float() + 1, (POSITIONS,), ["aten.mul.Tensor", "aten._to_copy.default"]),
    "a value brought back into range": (lambda x: (x * x % 1000) + 1, (POSITIONS,), ["aten.mul.Tensor", "aten.remainder.Scalar"]),
    "int32": (lambda x: x * x * x, (POSITIONS.int(),), []),
    "what is only used as an index": (lambda x, i: indexed_by(x, i * i), (X, POSITIONS), []),
    "an index that is returned too": (lambda x, i: (indexed_by(x, j := i * i), j), (X, POSITIONS), ["aten.mul.Tensor"]),
    "what is indexed": (lambda i: aten.index(i * i, [torch.tensor([0])]), (POSITIONS,), ["aten.mul.Tensor", "aten.index.Tensor"]),
}


@pytest.mark.parametrize("name", IN_PYTORCH)
def test_what_stays_in_pytorch(name: str) -> None:
    function, inputs, expected = IN_PYTORCH[name]
    assert in_pytorch(function, *inputs) == expected


INDEXED: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "index": lambda x, i: x[i],
    "index_select": lambda x, i: x.index_select(0, i),
    "gather": lambda x, i: x.gather(0, i[:, None]),
    "embedding": lambda x, i: torch.nn.functional.embedding(i, x),
    "scatter_add": lambda x, i: x.scatter_add(0, i[:, None], x[:2]),
}


@pytest.mark.parametrize("name", INDEXED)
def test_positions_are_safe_whatever_their_bound(name: str) -> None:
    """The positions are inputs without a bound; an operator that computes with them would stay in PyTorch."""
    operators = in_pytorch(INDEXED[name], torch.randn(5, 3), integers(2), wide=True)
    assert not any(name in operator for operator in operators)


def test_largest_lists_the_bounds_of_integers_only() -> None:
    gm = traced(lambda x, y: (x + 1, y * 2), integers(2), torch.randn(2))
    assert names(gm) == ["aten.add.Tensor", "aten.mul.Tensor"]
    assert largest(gm, False) == [INPUT_BOUND, INPUT_BOUND + 1]


@pytest.mark.parametrize(
    "value,expected",
    [
        (torch.tensor([INPUT_BOUND, -INPUT_BOUND]), True),
        (torch.tensor([INPUT_BOUND + 1]), False),
        (torch.tensor([-INPUT_BOUND - 1]), False),
        (torch.tensor([1 << 30], dtype=torch.int32), True),
        (torch.tensor([1e30]), True),
        (torch.tensor([], dtype=torch.int64), True),
        (1 << 40, True),
    ],
    ids=str,
)
def test_which_arguments_fit(value: object, expected: bool) -> None:
    assert fits(value) is expected
