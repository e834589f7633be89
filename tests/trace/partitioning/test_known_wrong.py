"""Operators that OpenVINO gets wrong stay in PyTorch, with the arguments with which it gets them wrong and no others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.fx import Graph, GraphModule, Node

from ov_backend.core import fx_utils
from ov_backend.trace.partitioning import known_wrong
from ov_backend.trace.partitioning.packets import packet_of
from ov_backend.trace.partitioning.partitioner import unsupported
from tests.helpers.graphs import SETTINGS, assert_close, node_of, run_openvino, traced

aten = torch.ops.aten
x = torch.randn(1, 2, 6, 6)

#: A function whose operator stays in PyTorch, and one of the same operator that runs in OpenVINO.
PAIRS: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "argmax": (lambda: traced(lambda x: x.argmax(), x), lambda: traced(lambda x: x.argmax(), x.int())),
    "avg_pool2d": (
        lambda: traced(lambda x: F.avg_pool2d(x, 4, ceil_mode=True), x),
        lambda: traced(lambda x: F.avg_pool2d(x, 4), x),
    ),
    "upsample_nearest2d": (
        lambda: traced(lambda x: aten.upsample_nearest2d(x, [9, 9], 1.6, 1.6), x),
        lambda: traced(lambda x: aten.upsample_nearest2d(x, [9, 9], 1.5, 1.5), x),
    ),
    "upsample_bilinear2d": (
        lambda: traced(lambda x: aten.upsample_bilinear2d(x, [9, 9], False, 1.6, 1.6), x),
        lambda: traced(lambda x: aten.upsample_bilinear2d(x, [9, 9], False), x),
    ),
    "linalg_vector_norm": (
        lambda: traced(lambda x: torch.linalg.vector_norm(x, ord=-float("inf")), x),
        lambda: traced(lambda x: torch.linalg.vector_norm(x), x),
    ),
    "round": (lambda: traced(lambda x: x.round(decimals=2), x), lambda: traced(lambda x: x.round(), x)),
    "grid_sampler_2d": (
        lambda: traced(lambda x: F.grid_sample(x, x.new_zeros(1, 3, 3, 2), "nearest", align_corners=False), x),
        lambda: traced(lambda x: F.grid_sample(x, x.new_zeros(1, 3, 3, 2), "bilinear", align_corners=False), x),
    ),
    "roll": (lambda: traced(lambda x: x.roll(1 << 33, 2), x), lambda: traced(lambda x: x.roll(-(1 << 30), 2), x)),
    "index_put": (
        lambda: traced(lambda x: x.index_put((x > 0,), torch.tensor(1.0), accumulate=True), x),
        lambda: traced(lambda x: x.index_put((x > 0,), torch.tensor(1.0)), x),
    ),
    "repeat": (
        lambda: traced(lambda x: aten.repeat(x, []), torch.tensor(1.0)),
        lambda: traced(lambda x: aten.repeat(x, [2]), torch.tensor(1.0)),
    ),
    "sub": (
        lambda: traced(lambda x: (x + 12582912.0) - 12582912.0, x),
        lambda: traced(lambda x: (x + 12582912.0) - 1.0, x),
    ),
    "add": (
        lambda: traced(lambda x: x + torch.ones(3, dtype=torch.float16), torch.ones(3, dtype=torch.int32)),
        lambda: traced(lambda x: x + torch.ones(3, dtype=torch.float16), torch.ones(3, dtype=torch.uint8)),
    ),
}


def test_attention_with_more_values_than_keys_stays_in_pytorch() -> None:
    def attention(values: int) -> Node:
        graph = Graph()
        query, key, value = (graph.placeholder(name) for name in "qkv")
        for node, length in ((query, 4), (key, 4), (value, values)):
            node.meta["val"] = torch.empty(1, 2, length, 8)
        return graph.call_function(aten.scaled_dot_product_attention.default, (query, key, value))

    nodes = [attention(8), attention(4)]
    for node in nodes:
        node.meta["val"] = torch.empty(1, 2, 4, 8)
    assert ["another number of values" in known_wrong.reason(node) for node in nodes] == [True, False]


@pytest.mark.parametrize("name", PAIRS)
def test_arguments_decide(name: str) -> None:
    wrong, right = (node_of(make(), node_name(make(), name)) for make in PAIRS[name])
    assert known_wrong.reason(wrong)
    assert known_wrong.reason(right) == ""


def node_name(gm: GraphModule, packet: str) -> str:
    """The overload of a packet that a graph holds."""
    (name,) = {str(node.target) for node in fx_utils.operators(gm) if str(packet_of(node)) == f"aten.{packet}"}
    return name


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.amax(-1),
        lambda x: x.amin(),
        lambda x: torch.logsumexp(x, -1),
        lambda x: torch.logaddexp(x, x),
        lambda x: torch.erfinv(x),
        lambda x: torch.erfc(x),
        lambda x: torch.linspace(0, 1, 5) + x[0, 0, 0, :5],
        lambda x: x.as_strided([2, 2], [1, 3]),
        lambda x: x.kthvalue(2)[0],
        lambda x: torch.rot90(x, 1, [2, 3]).contiguous(),
    ],
    ids=["amax", "amin", "logsumexp", "logaddexp", "erfinv", "erfc", "linspace", "as_strided", "kthvalue", "rot90"],
)
def test_operators_that_are_wrong_with_any_arguments(function: Callable[[torch.Tensor], torch.Tensor]) -> None:
    assert any(known_wrong.reason(node) for node in fx_utils.operators(traced(function, x)))


@pytest.mark.parametrize(
    ("function", "wrong"),
    [
        (lambda x: x == x.half(), True),
        (lambda x: x < x.half().float(), True),
        (lambda x: x.bfloat16() >= x, True),
        (lambda x: x.half() > x.half() * 2, False),
        (lambda x: x > 0.5, False),
        (lambda x: x > x * 2, False),
        (lambda x: x.half() > 0, False),
    ],
)
def test_numbers_of_two_precisions_are_compared_in_pytorch(function: Callable[[torch.Tensor], torch.Tensor], wrong: bool) -> None:
    assert any("two precisions" in known_wrong.reason(node) for node in fx_utils.operators(traced(function, x))) == wrong


def test_the_reason_reaches_the_partitioner() -> None:
    gm = traced(lambda x: x.logsumexp(-1) + 1, x)
    ((node, why),) = unsupported(gm, SETTINGS).items()
    assert (str(node.target), why) == ("aten.logsumexp.default", known_wrong.reason(node))
    assert "infinity" in why


def test_the_reason_is_true_of_amax() -> None:
    """The entry can go when this fails: OpenVINO then answers with NaN as PyTorch does."""
    gm = traced(lambda x: x.amax(-1), torch.zeros(2, 3))
    assert run_openvino(gm, torch.tensor([[float("nan"), 0, 1], [1, 2, float("nan")]]))[0].isfinite().any()
    assert_close(run_openvino(gm, torch.full((2, 3), -torch.inf)), [torch.full((2,), -torch.inf)])


def test_the_reason_is_true_of_logsumexp() -> None:
    """The entry can go when this fails: OpenVINO then answers with minus infinity as PyTorch does."""
    gm = traced(lambda x: x.logsumexp(-1), torch.zeros(2, 3))
    infinite = torch.full((2, 3), -torch.inf)
    assert not run_openvino(gm, infinite)[0].isneginf().all()
    assert_close(run_openvino(gm, torch.zeros(2, 3)), [torch.full((2,), 3.0).log()])


def test_other_operators_have_no_reason() -> None:
    gm = traced(lambda x: (x + 1).relu().sum(-1), x)
    assert not any(known_wrong.reason(node) for node in fx_utils.operators(gm))


def test_a_plain_function_has_no_reason() -> None:
    graph = Graph()
    assert known_wrong.reason(graph.call_function(abs, (graph.placeholder("x"),))) == ""


def quantizers() -> Any:
    """The operators of PT2E quantization; torch.ao registers them."""
    import torch.ao.quantization.fx._decomposed

    return torch.ops.quantized_decomposed


def test_a_pair_of_quantize_and_dequantize_runs_in_openvino() -> None:
    q = quantizers()

    def f(x: torch.Tensor) -> torch.Tensor:
        stored = q.quantize_per_tensor.default(x, 0.1, 0, -128, 127, torch.int8)
        return q.dequantize_per_tensor.default(stored, 0.1, 0, -128, 127, torch.int8)

    gm = traced(f, x)
    assert [known_wrong.reason(node) for node in fx_utils.operators(gm)] == ["", ""]


def test_stored_integers_and_lone_quantizations_stay_in_pytorch() -> None:
    q = quantizers()
    stored = torch.zeros(3, dtype=torch.int8)
    dequantize = traced(lambda s: q.dequantize_per_tensor.default(s, 0.1, 0, -128, 127, torch.int8), stored)
    quantize = traced(lambda x: q.quantize_per_tensor.default(x, 0.1, 0, -128, 127, torch.int8) + 1, x)
    for gm in (dequantize, quantize):
        assert "pairs" in known_wrong.reason(fx_utils.operators(gm)[0])


def test_integers_made_of_half_precision_are_rounded_before() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x.to(torch.float16).to(torch.int16)

    reasons = [known_wrong.reason(node) for node in fx_utils.operators(traced(function, torch.tensor([5127], dtype=torch.int16)))]
    assert [bool(reason) for reason in reasons] == [False, True]


def test_infinite_numbers_in_bfloat16_arithmetic_stay_in_pytorch() -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x * float("inf"), x - float("inf"), x * 2

    for dtype, wrong in ((torch.bfloat16, [True, True, False]), (torch.float32, [False] * 3)):
        graph = traced(function, torch.zeros(3, dtype=dtype))
        assert ["infinite" in known_wrong.reason(node) for node in fx_utils.operators(graph)] == wrong


@pytest.mark.parametrize(
    "function",
    [
        lambda mask: torch.softmax(mask, -1),
        lambda mask: F.relu(mask),
        lambda mask: mask @ mask.T,
        lambda mask: 1 - mask,
        lambda mask: mask.argmax(1),
        lambda mask: F.max_pool1d(mask, 2),
    ],
)
def test_what_pytorch_refuses_for_booleans_is_refused(function: Callable[[torch.Tensor], Any]) -> None:
    mask = torch.eye(4, dtype=torch.bool)
    with pytest.raises((RuntimeError, NotImplementedError)):
        function(mask)
    assert any(known_wrong.reason(node) for node in fx_utils.operators(traced(function, mask)))


@pytest.mark.parametrize(("number", "wrong"), [(1e6, True), (1e4, False)])
@pytest.mark.parametrize("name", ["mul", "div", "add", "sub"])
def test_numbers_that_float16_does_not_hold_stay_in_pytorch(name: str, number: float, wrong: bool) -> None:
    operator = getattr(torch, name)
    gm = traced(lambda x: operator(x, number), torch.ones(3, dtype=torch.float16))
    assert [known_wrong.reason(node) != "" for node in fx_utils.operators(gm)] == [wrong]
