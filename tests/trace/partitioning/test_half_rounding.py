"""What turns on the rounding of a half precision is decided in PyTorch, and what networks ask is not."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from ov_backend.core import fx_utils
from ov_backend.model import compiler
from ov_backend.trace.capture.trace import Captured
from ov_backend.trace.partitioning.half_rounding import undecided
from tests.helpers.graphs import SETTINGS, names, traced

x = torch.tensor([2.9999, 0.99999, 2047.7, 300.0, 1e-9])

DECISIONS: dict[str, Callable[[torch.Tensor], Any]] = {
    "floor": lambda x: x.half().floor(),
    "the whole part of a quotient": lambda x: (x.half() / 3).trunc(),
    "ceil in bfloat16": lambda x: (x.bfloat16() * 100).ceil(),
    "an equality": lambda x: (x.half() + 2048) == 2048,
    "an equality in float32": lambda x: (x.half() * x.half()).float() == 9,
    "floor in float32": lambda x: x.half().float().floor(),
    "a step": lambda x: torch.heaviside(x.half() - 3, torch.tensor(0.5).half()),
    "an overflow": lambda x: (x.half() * x.half()).isinf(),
    "a choice by an overflow": lambda x: torch.where((x.half() * x.half()).isinf().any(), 60000.0, x),
    "an integer": lambda x: (x.half() * 7.3).int(),
    "a remainder": lambda x: x.half().remainder(1.0),
    "zero by underflow": lambda x: x.half() * 1e-3 == 0,
    "what its rounding leaves of a number": lambda x: (lambda y: y - y.half().float())(x.sin()),
    "an input there and back": lambda x: x.half().view(1, 5).float() * 1e9,
}


@pytest.mark.parametrize("name", DECISIONS)
def test_the_rounding_decides(name: str) -> None:
    gm = traced(lambda x: (DECISIONS[name](x), x.sin()), x)
    assert undecided(gm)
    captured = Captured(gm, (), ("x",), {})
    result = compiler.Compiler(captured, SETTINGS).compile().program.compile({}, SETTINGS)([x])[0]
    assert torch.equal(result, DECISIONS[name](x))


def _limited(x: torch.Tensor) -> torch.Tensor:
    """As transformers' T5 does."""
    half = x.half() * 2
    limit = torch.where(half.isinf().any(), 64504, 65504)
    return torch.clamp(half, min=-limit, max=limit)


@pytest.mark.parametrize(
    "function",
    [
        _limited,
        lambda x: (lambda half: half != half)(x.half() * 2),
        lambda x: ((x.half() * 2) == -math.inf).all(0),
        lambda x: ((x.half() * 2) != -math.inf).any(0, keepdim=True),
        lambda x: (x.bfloat16() * 2).isinf(),
        lambda x: (1.0 - (x > 1).half()).bool(),
        lambda x: torch.where(x.half() > 0, x.half(), x.half() * 0.1),
        lambda x: x.sin().half().float() * 2,
        lambda x: x.floor() == 3,
    ],
)
def test_what_networks_ask_stays_in_openvino(function: Callable[[torch.Tensor], Any]) -> None:
    assert not undecided(traced(function, x))


def test_numbers_that_are_given_are_rounded() -> None:
    gm = traced(lambda h: h.view(-1).floor() + (h == 1), x.half())
    assert names(gm)
    assert not undecided(gm)


def test_only_what_is_decided_by_stays_in_pytorch() -> None:
    gm = traced(lambda x: ((x.sin().half() - 3).floor(), x.cos().half() * 2), x)
    stays = {str(node.target) for node in undecided(gm)}
    assert stays == {"aten.sub.Tensor", "aten.floor.default"} < {str(node.target) for node in fx_utils.operators(gm)}
