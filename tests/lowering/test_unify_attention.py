"""The attention operators of single kernels become scaled_dot_product_attention."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from ov_backend.lowering.passes.unify_attention import _KERNELS, unify_attention
from tests.helpers.graphs import assert_close, names, run_eagerly, run_openvino, traced

attention = torch.nn.functional.scaled_dot_product_attention
flash = _KERNELS[0]


def inputs() -> list[torch.Tensor]:
    return [torch.randn(2, 3, 5, 8) for _ in range(3)]


@pytest.mark.parametrize("keywords", [{}, {"is_causal": True}], ids=["full", "causal"])
def test_a_traced_attention_is_one_operator_and_runs_in_openvino(keywords: dict[str, Any]) -> None:
    q, k, v = inputs()
    gm = traced(lambda q, k, v: attention(q, k, v, **keywords), q, k, v)
    assert names(gm) == [str(flash)], "PyTorch traces the kernel's operator"
    gm = unify_attention(gm)
    assert names(gm) == ["aten.scaled_dot_product_attention.default"]
    assert_close(run_openvino(gm, q, k, v), [attention(q, k, v, **keywords)])


def schema_arguments() -> set[str]:
    return {argument.name for argument in flash._schema.arguments}


def test_mask_and_scale_are_kept() -> None:
    q, k, v = inputs()
    mask = torch.randn(2, 3, 5, 5)
    if "attn_mask" not in schema_arguments():
        pytest.skip("this torch's kernel takes no mask")
    gm = traced(lambda q, k, v, mask: flash(q, k, v, attn_mask=mask, scale=0.3)[0], q, k, v, mask)
    gm = unify_attention(gm)
    assert names(gm) == ["aten.scaled_dot_product_attention.default"]
    expected = attention(q, k, v, attn_mask=mask, scale=0.3)
    gm.recompile()
    assert_close(run_eagerly(gm, q, k, v, mask), [expected])
    assert_close(run_openvino(gm, q, k, v, mask), [expected])


def test_attention_whose_log_sum_exp_is_read_stays() -> None:
    q, k, v = inputs()
    gm = unify_attention(traced(lambda q, k, v: flash(q, k, v)[:2], q, k, v))
    assert names(gm) == [str(flash)]
    out, log_sum_exp = run_eagerly(gm, q, k, v)
    assert_close([out], [attention(q, k, v)])
    assert log_sum_exp.numel() == 2 * 3 * 5


def test_several_attentions_in_one_graph() -> None:
    q, k, v = inputs()

    def f(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return attention(attention(q, k, v), k, v, is_causal=True)

    gm = unify_attention(traced(f, q, k, v))
    assert names(gm) == ["aten.scaled_dot_product_attention.default"] * 2
    assert_close(run_openvino(gm, q, k, v), [f(q, k, v)])
