"""Ranges of floats are right whatever their bounds are written as."""

from __future__ import annotations

import pytest
import torch

from ov_backend.trace.lowering.passes.float_ranges import float_ranges
from tests.helpers.graphs import assert_close, run_openvino, traced

RANGES = [(0, 1, 0.25), (2, 0, -0.5), (1, 7, 1.5), (1, 0, -0.25), (0.5, 3), (2.0,), (0, 4, 1.0)]


@pytest.mark.parametrize("numbers", RANGES, ids=str)
def test_ranges_of_floats(numbers: tuple[float, ...]) -> None:
    x = torch.ones(1)
    gm = float_ranges(traced(lambda x: torch.arange(*numbers) * x, x))
    assert_close(run_openvino(gm, x), [torch.arange(*numbers)])


def test_ranges_of_integers_stay() -> None:
    x = torch.ones(1, dtype=torch.int32)
    gm = float_ranges(traced(lambda x: torch.arange(1, 7, 2) * x, x))
    (node,) = (node for node in gm.graph.nodes if "arange" in str(node.target))
    assert node.args == (1, 7, 2)
