"""Attention is one operator, with zeros where a mask excludes every key; a softmax between two views is everyone's own."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

import ov_backend
from ov_backend import Settings
from ov_backend.engine.engine import Engine
from ov_backend.trace.lowering import lower
from ov_backend.trace.lowering.passes.separate_softmaxes import separate_softmaxes
from ov_backend.trace.lowering.passes.unify_attention import _KERNELS, unify_attention
from ov_backend.trace.lowering.passes.zero_masked_rows import _RETURNS_ZERO
from tests.helpers.graphs import assert_close, names, run_eagerly, run_openvino, traced

_aten = torch.ops.aten
attention = torch.nn.functional.scaled_dot_product_attention
flash = _KERNELS[0]
OPTIONS: dict[str, Any] = {"precision": "f32", "fallback": "raise"}


def inputs() -> list[torch.Tensor]:
    return [torch.randn(2, 3, 5, 8) for _ in range(3)]


TRACED: dict[str, tuple[Callable[..., torch.Tensor], int]] = {
    "full": (lambda q, k, v: attention(q, k, v), 1),
    "causal": (lambda q, k, v: attention(q, k, v, is_causal=True), 1),
    "two": (lambda q, k, v: attention(attention(q, k, v), k, v, is_causal=True), 2),
}


@pytest.mark.parametrize("name", TRACED)
def test_a_traced_attention_is_one_operator_and_runs_in_openvino(name: str) -> None:
    function, count = TRACED[name]
    q, k, v = inputs()
    gm = traced(function, q, k, v)
    assert names(gm) == [str(flash)] * count, "PyTorch traces the kernel's operator"
    gm = unify_attention(gm)
    assert names(gm) == ["aten.scaled_dot_product_attention.default"] * count
    assert_close(run_openvino(gm, q, k, v), [function(q, k, v)])


def test_mask_and_scale_are_kept() -> None:
    q, k, v = inputs()
    mask = torch.randn(2, 3, 5, 5)
    if "attn_mask" not in {argument.name for argument in flash._schema.arguments}:
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


#: Shapes of query, key and value, and the keywords beside ``enable_gqa``.
SHARED_HEADS = {
    "four queries a head": ((2, 8, 5, 16), (2, 2, 5, 16), (2, 2, 5, 16), {}),
    "one head for all": ((1, 4, 5, 16), (1, 1, 7, 16), (1, 1, 7, 16), {"scale": 0.3}),
    "causal": ((1, 4, 6, 8), (1, 2, 6, 8), (1, 2, 6, 8), {"is_causal": True}),
    "a mask": ((2, 6, 5, 8), (2, 3, 5, 8), (2, 3, 5, 8), {"attn_mask": torch.randn(2, 1, 5, 5)}),
    "values of another width": ((1, 4, 5, 8), (1, 2, 5, 8), (1, 2, 5, 6), {}),
}


@pytest.mark.skipif("enable_gqa" not in str(_aten.scaled_dot_product_attention.default._schema), reason="since torch 2.5")
@pytest.mark.parametrize("symbolic", [False, True], ids=["static", "symbolic"])
@pytest.mark.parametrize("name", SHARED_HEADS)
def test_heads_that_queries_share_are_repeated(name: str, symbolic: bool) -> None:
    *shapes, keywords = SHARED_HEADS[name]
    q, k, v = (torch.randn(shape) for shape in shapes)

    def f(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return attention(q, k, v, **keywords, enable_gqa=True)

    torch._dynamo.reset()
    ov_backend.reset()
    compiled = torch.compile(f, backend="openvino_fx", options=OPTIONS | {"dynamic_shapes": symbolic})
    for tensor in (q, k, v) if symbolic else ():
        torch._dynamo.maybe_mark_dynamic(tensor, 2)
    assert_close([compiled(q, k, v)], [f(q, k, v)])
    for graph, stats in ov_backend.stats().items():
        assert (stats["in_pytorch"], stats["corrections"]) == ({}, {}), graph
    if symbolic and "attn_mask" not in keywords:
        q, k, v = (torch.randn(*each.shape[:2], each.shape[2] + 3, each.shape[3]) for each in (q, k, v))
        assert_close([compiled(q, k, v)], [f(q, k, v)])
        assert sum(stats["compiles"] for stats in ov_backend.stats().values()) == 1


since_2_5 = pytest.mark.skipif(not _RETURNS_ZERO, reason="before torch 2.5 the rows are NaN in PyTorch too")


def square() -> list[torch.Tensor]:
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
    q, k, v = square()
    expected = attention(q, k, v, attn_mask=mask)
    assert not expected[:, :, 1].any(), "PyTorch's own answer"
    gm = lower(traced(lambda q, k, v, mask: attention(q, k, v, attn_mask=mask), q, k, v, mask))
    assert_close(run_eagerly(gm, q, k, v, mask), [expected])
    assert_close(run_openvino(gm, q, k, v, mask), [expected])


def test_attention_without_a_mask_is_one_operator() -> None:
    q, k, v = square()
    gm = lower(traced(lambda q, k, v: attention(q, k, v, is_causal=True), q, k, v))
    assert names(gm) == ["aten.scaled_dot_product_attention.default"]


Function = Callable[..., torch.Tensor | tuple[torch.Tensor, ...]]


def product(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """A linear layer as it is traced: rows, a product, and a view back."""
    return torch.ops.aten._unsafe_view.default(x.view(-1, x.shape[-1]) @ weight, [*x.shape[:-1], weight.shape[-1]])


def probabilities(x: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = product(x, a).softmax(-1)
    return product(y, b), y[1].sum(), y.mean(1).square().sum()


def logits(x: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = product(x, a)
    return product(y.softmax(-1), b), y[1].sum(), torch.maximum(y, y.softmax(-1))


def two_views(x: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = product(x, a).softmax(-1)
    return product(y, b), y.view(2, -1).sum(1), y[0].sum()


@pytest.fixture
def rows() -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.randn(2, 5, 8), torch.randn(8, 6), torch.randn(6, 3)]


@pytest.mark.parametrize("function", [probabilities, logits, two_views])
def test_every_reader_gets_its_own(function: Function, rows: list[torch.Tensor]) -> None:
    gm = separate_softmaxes(traced(function, *rows))
    gm.recompile()
    expected = list(function(*rows))
    assert_close(run_eagerly(gm, *rows), expected)
    assert_close(run_openvino(gm, *rows), expected)


def test_a_softmax_with_one_reader_stays(rows: list[torch.Tensor]) -> None:
    gm = traced(lambda x, a, b: product(product(x, a).softmax(-1), b), *rows)
    before = names(gm)
    assert names(separate_softmaxes(gm)) == before
    assert before.count("aten._softmax.default") == 1


class Router(torch.nn.Module):
    """Chooses among experts, and says how evenly."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.gate, self.mix = torch.nn.Linear(8, 6, bias=False), torch.nn.Linear(6, 8, bias=False)
        self.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        shares = torch.softmax(self.gate(x), -1)
        return self.mix(shares), shares[1].sum(0)


def test_a_module_that_returns_what_it_mixes_by(strict: Callable[..., Settings], rows: list[torch.Tensor]) -> None:
    module = Router()
    network = Engine(strict(precision="f32")).network("router", module)
    assert_close(list(network(rows[0])), list(module(rows[0])))
