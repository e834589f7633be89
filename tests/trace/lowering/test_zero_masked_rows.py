"""Attention returns 0 where a mask excludes every key, as PyTorch does since version 2.5."""

from __future__ import annotations

import math

import pytest
import torch

from ov_backend.trace.lowering import lower
from ov_backend.trace.lowering.passes.zero_masked_rows import _RETURNS_ZERO
from tests.helpers.graphs import assert_close, names, run_eagerly, run_openvino, traced

attention = torch.nn.functional.scaled_dot_product_attention
since_2_5 = pytest.mark.skipif(not _RETURNS_ZERO, reason="before torch 2.5 the rows are NaN in PyTorch too")


def inputs() -> list[torch.Tensor]:
    return [torch.randn(1, 2, 4, 8) for _ in range(3)]


def keep() -> torch.Tensor:
    """Which keys each query sees: the second query sees none."""
    mask = torch.rand(1, 1, 4, 4) > 0.3
    mask[..., 0], mask[..., 1, :] = True, False
    return mask


@since_2_5
@pytest.mark.parametrize("additive", [False, True], ids=["bool", "float"])
def test_rows_without_keys_are_zero(additive: bool) -> None:
    mask = torch.zeros(1, 1, 4, 4).masked_fill(~keep(), -math.inf) if additive else keep()
    q, k, v = inputs()
    expected = attention(q, k, v, attn_mask=mask)
    assert not expected[:, :, 1].any(), "PyTorch's own answer"
    gm = lower(traced(lambda q, k, v, mask: attention(q, k, v, attn_mask=mask), q, k, v, mask))
    assert_close(run_eagerly(gm, q, k, v, mask), [expected])
    assert_close(run_openvino(gm, q, k, v, mask), [expected])


def test_attention_without_a_mask_is_one_operator() -> None:
    q, k, v = inputs()
    gm = lower(traced(lambda q, k, v: attention(q, k, v, is_causal=True), q, k, v))
    assert names(gm) == ["aten.scaled_dot_product_attention.default"]
