"""Numbers that are added and taken back stay in PyTorch, and other sums do not."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from ov_backend import Settings
from ov_backend.core import fx_utils
from ov_backend.trace.lowering import lower
from ov_backend.trace.partitioning import known_wrong
from ov_backend.trace.partitioning.packets import aten_packets, packet_of
from tests.helpers.graphs import run_openvino, traced
from tests.helpers.small import engine_for

x = torch.randn(1, 2, 6, 6)
ADDS = aten_packets("add", "sub")


@pytest.mark.parametrize(
    "rounded",
    [
        lambda x: (x + 12582912.0) - 12582912.0,
        lambda x: x - 1e8 + 1e8,
        lambda x: torch.add(x, 1e8, alpha=2).sub(2e8),
        lambda x: (x + torch.tensor(1e8)) - torch.tensor([1e8]),
        lambda x: (x + torch.tensor([1e8] * 6)) - torch.tensor([1e8] * 6),
    ],
)
def test_a_number_that_is_taken_back_leaves_its_rounding(rounded: Callable[[torch.Tensor], torch.Tensor]) -> None:
    gm = lower(traced(rounded, x))
    assert [known_wrong.reason(node) != "" for node in fx_utils.operators(gm) if packet_of(node) in ADDS] == [True, True]
    assert not torch.equal(run_openvino(gm, x)[0], rounded(x)), "OpenVINO rounds as PyTorch does: the entry can go"


@pytest.mark.parametrize(
    ("function", "wrong"),
    [
        (lambda x: (x + 12582912.0).clone() - 12582912.0, True),
        (lambda x: ((x + 1e8) + 1.0) - 1e8, True),
        (lambda x: 1e8 - (1e8 - x), True),
        (lambda x: ((x + 1e8) * 2) - 2e8, True),
        (lambda x: -(-(x + 1e8) + 1e8), True),
        (lambda x: ((x + 6291456.0) + 6291456.0) - 12582912.0, True),
        (lambda x: (x + torch.full((6,), 1e8)).view(-1) - torch.full((72,), 1e8), True),
        (lambda x: F.linear(x, torch.ones(1, 6), torch.full((1,), 1e8)) - 1e8, True),
        (lambda x: (x.bfloat16() + 512) * 1 - 512, True),
        (lambda x: (x / 2 + 0.5).clone() * 2 - 1, False),
        (lambda x: (1 - x) * -1e9, False),
        (lambda x: x * 1e6 + 1e6 - 5, False),
    ],
)
def test_large_numbers_are_taken_back_in_pytorch(function: Callable[[torch.Tensor], torch.Tensor], wrong: bool) -> None:
    gm = lower(traced(function, x))
    assert any("takes back" in known_wrong.reason(node) for node in fx_utils.operators(gm)) == wrong


def test_constants_of_several_elements_are_added_in_openvino() -> None:
    gm = lower(traced(lambda x: (x + torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])) - torch.tensor([[1.0], [2.0]] * 3), x))
    assert [known_wrong.reason(node) for node in fx_utils.operators(gm) if packet_of(node) in ADDS] == ["", ""]


class Halves(torch.nn.Module):
    """Whole numbers and a half, rounded."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return ((x + 0.5) + 12582912.0).clone() - 12582912.0


def test_what_is_added_before_a_number_that_is_taken_back_is_rounded_first(strict: Callable[..., Settings]) -> None:
    module, x = Halves(), torch.arange(-8, 8, dtype=torch.int32)
    gm = lower(traced(module, x))
    in_pytorch = [known_wrong.reason(node) != "" for node in fx_utils.operators(gm) if packet_of(node) in ADDS]
    assert in_pytorch == [False, True, True]
    assert torch.equal(engine_for(strict(), module)(x), module(x))
