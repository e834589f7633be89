"""A view as a scalar becomes a squeeze; other views stay."""

from __future__ import annotations

import pytest
import torch

from ov_backend.trace.lowering.passes.squeeze_scalars import squeeze_scalars
from tests.helpers.graphs import assert_close, names, run_eagerly, run_openvino, traced

aten = torch.ops.aten


@pytest.mark.parametrize("shape", [(1,), (1, 1, 1)], ids=str)
@pytest.mark.parametrize("view", [aten.view.default, aten._unsafe_view.default], ids=str)
def test_a_view_as_a_scalar_becomes_a_squeeze(view: torch._ops.OpOverload, shape: tuple[int, ...]) -> None:
    x = torch.randn(shape)
    gm = squeeze_scalars(traced(lambda x: view(x, []) * 2, x))
    assert names(gm) == ["aten.squeeze.dims", "aten.mul.Tensor"]
    gm.recompile()
    assert_close(run_eagerly(gm, x), [x.reshape(()) * 2])


def test_a_product_as_a_scalar_runs_in_openvino() -> None:
    """Without the pass the CPU device crashes on a product that is reshaped to a scalar."""
    x, y = torch.randn(1, 4), torch.randn(4, 1)
    gm = squeeze_scalars(traced(lambda x, y: torch.mm(x, y).view([]) + 1, x, y))
    assert_close(run_openvino(gm, x, y), [torch.mm(x, y).view([]) + 1])


@pytest.mark.parametrize(("x", "shape"), [(torch.tensor(3.0), []), (torch.randn(2, 3), [1, 6])], ids=["scalar", "dimensions"])
def test_another_view_stays(x: torch.Tensor, shape: list[int]) -> None:
    assert names(squeeze_scalars(traced(lambda x: aten.view.default(x, shape), x))) == ["aten.view.default"]
