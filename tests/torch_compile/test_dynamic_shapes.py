"""``dynamic_shapes``: one OpenVINO graph with dynamic dimensions where Dynamo leaves sizes open."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import ov_backend
from ov_backend.core.errors import CaptureError
from ov_backend.trace.capture import symbolic_trace
from ov_backend.trace.capture.symbolic_trace import SymbolicTrace
from tests.helpers.torch_compile import Compile, agree, calls, corrections, fallbacks


def counts() -> dict[str, int]:
    stats = ov_backend.stats().values()
    return {name: sum(network[name] for network in stats) for name in ("captures", "compiles", "calls")}


class Picture(torch.nn.Module):
    """Convolutions, both kinds of norm, attention over the pixels, a skip and an upsampling: a UNet's ingredients."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.down = torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.Conv2d(8, 8, 3, stride=2, padding=1)
        self.norm, self.layer = torch.nn.GroupNorm(2, 8), torch.nn.LayerNorm(8)
        self.qkv, self.out = torch.nn.Linear(8, 24), torch.nn.Conv2d(16, 3, 1)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, int]:
        first = F.silu(self.norm(self.into(x)))
        y = self.down(first)
        batch, channels, height, width = y.shape
        tokens = self.layer(y.flatten(2).transpose(1, 2))
        q, k, v = (t.view(batch, -1, 2, 4).transpose(1, 2) for t in self.qkv(tokens).chunk(3, -1))
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(batch, height * width, channels)
        y = y + mixed.transpose(1, 2).reshape(batch, channels, height, width)
        y = F.interpolate(y, size=first.shape[-2:], mode="nearest")
        return self.out(torch.cat([y, first], 1)), height * width


SIZES = [(2, 12, 16), (3, 20, 14), (2, 9, 31), (5, 40, 40)]


def without_recompiling() -> Any:
    """In this block Dynamo raises instead of compiling once more; since torch 2.6."""
    if not hasattr(torch.compiler, "set_stance"):
        return contextlib.nullcontext()
    return torch.compiler.set_stance("fail_on_recompile")


@pytest.mark.parametrize("option", [True, False])
def test_one_graph_serves_all_sizes_with_the_option(compiled: Compile, option: bool) -> None:
    """A new size recompiles nothing; without the option each size of the first two is compiled."""
    net = Picture().eval()
    g = compiled(net, dynamic=True, **({"dynamic_shapes": True} if option else {}))
    sizes = SIZES if option else SIZES[:2]
    for number, (batch, height, width) in enumerate(sizes):
        x = torch.randn(batch, 3, height, width)
        with without_recompiling() if number and option else contextlib.nullcontext():
            agree(g(x), net(x))
    found = counts()
    assert (found["compiles"], found["calls"]) == (1 if option else 2, len(sizes))
    assert not option or found["captures"] == 1
    assert not fallbacks()
    assert not corrections()


@pytest.mark.parametrize("dynamic", ["mark_dynamic", "automatic"])
def test_only_marked_or_changing_sizes_are_dynamic(compiled: Compile, dynamic: str) -> None:
    net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.Linear(8, 3))
    g = compiled(net, dynamic=None, dynamic_shapes=True)
    for batch in (2, 3, 5, 900):
        x = torch.randn(batch, 4)
        if dynamic == "mark_dynamic":
            torch._dynamo.mark_dynamic(x, 0)
        agree(g(x), net(x))
    assert counts() == {"captures": 1 + (dynamic == "automatic"), "compiles": 1 + (dynamic == "automatic"), "calls": 4}
    signatures = [text for network in ov_backend.stats().values() for text in network["signatures"]]
    assert any("[-1,4]" in text for text in signatures)


def test_static_calls_are_no_correction(compiled: Compile) -> None:
    net = torch.nn.Linear(4, 3)
    agree(compiled(net, dynamic=False, dynamic_shapes=True)(torch.ones(2, 4)), net(torch.ones(2, 4)))
    assert not corrections()


class Text(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = torch.nn.Embedding(50, 8), torch.nn.Embedding(64, 8)
        self.layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, norm_first=True, dropout=0.0)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        length = ids.shape[1]
        mask = torch.triu(torch.full((length, length), float("-inf")), 1)
        x = self.tokens(ids) + self.places(torch.arange(length))
        return self.layer(x, src_mask=mask)[torch.arange(ids.shape[0]), ids.argmax(-1)]


def test_text_of_any_length(compiled: Compile) -> None:
    net = Text()  # in training mode: no fast path of PyTorch's own
    g = compiled(net, dynamic=True, dynamic_shapes=True)
    for shape in ((2, 7), (3, 12), (4, 50)):
        ids = torch.stack([torch.randperm(50)[: shape[1]] for _ in range(shape[0])])
        agree(g(ids), net(ids))
    assert counts() == {"captures": 1, "compiles": 1, "calls": 3}, corrections()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool], ids=str)
def test_dtypes(compiled: Compile, dtype: torch.dtype) -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x.reshape(-1).flip(0), torch.cat([x, x], 1).t(), torch.where(x > 0, 1.0, 2.0)

    g = compiled(f, dynamic=True, dynamic_shapes=True)
    for shape in ((3, 5), (4, 2)):
        x = torch.randint(0, 9, shape).to(dtype)
        agree(g(x), f(x), 1e-2)
    assert counts()["compiles"] == 1


def test_numbers_among_inputs_and_results(compiled: Compile) -> None:
    def f(x: torch.Tensor, count: int, scale: float) -> tuple[Any, ...]:
        return x[:, :count] * scale, x.shape[0] * 2 + 1, x.numel(), None, count

    g = compiled(f, dynamic=True, dynamic_shapes=True)
    for shape, count, scale in (((3, 5), 2, 0.5), ((4, 7), 2, 0.5), ((4, 7), 3, 0.5), ((4, 7), 3, 1.5), ((3, 5), 2, 0.5)):
        x = torch.randn(shape)
        agree(g(x, count, scale), f(x, count, scale))
    assert not fallbacks()


def test_weights_that_change_are_seen(compiled: Compile) -> None:
    net = torch.nn.Linear(4, 3)
    g = compiled(net, dynamic=True, dynamic_shapes=True)
    for step in range(7):
        x = torch.randn(2 + step, 4)
        agree(g(x), net(x))
        net.weight.data.add_(0.5)
    assert set(corrections()) == {"a static graph for each size, because its calls bring ever new weights"}


def test_gradients(compiled: Compile) -> None:
    net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.Linear(8, 2))
    g = compiled(net, dynamic=True, dynamic_shapes=True)
    with torch.enable_grad():
        for batch in (3, 6):
            x = torch.randn(batch, 4, requires_grad=True)
            got = torch.autograd.grad(g(x).square().sum(), [x, *net.parameters()])
            agree(list(got), list(torch.autograd.grad(net(x).square().sum(), [x, *net.parameters()])))
    assert counts()["compiles"] == 1


def double(x: torch.Tensor) -> torch.Tensor:
    return (x.double() + 1e-12).float().sin() + x


def inverse(x: torch.Tensor) -> torch.Tensor:
    return torch.linalg.inv(x @ x.t() + torch.eye(x.shape[0])) @ x


def write(x: torch.Tensor) -> torch.Tensor:
    x.add_(1)
    return x * 2


@pytest.mark.parametrize("function, why", [(double, "float64"), (inverse, "linalg"), (write, "writes to its inputs")])
def test_what_cannot_be_dynamic_is_counted(compiled: Compile, function: Compile, why: str) -> None:
    g = compiled(function, dynamic=True, dynamic_shapes=True)
    for shape in ((3, 5), (4, 6)):
        x = torch.randn(shape)
        agree(g(x.clone()), function(x.clone()))
    ((what, count),) = corrections().items()
    assert why in what
    assert count == 2
    assert calls() == 2


def traced(function: Any, x: torch.Tensor) -> SymbolicTrace:
    dims = {0: tuple(range(x.dim()))}
    return symbolic_trace.trace(lambda slots, inputs: [function(*inputs)], [], [x], dims, {})


def test_conditions_on_sizes() -> None:
    branch = traced(lambda x: x * 2 if x.shape[0] > 8 else x + 1, torch.randn(10, 3))
    assert branch.meets_conditions(((9, 50),))
    assert not branch.meets_conditions(((8, 50),))
    square = traced(lambda x: x + x.t(), torch.randn(4, 4))
    assert square.meets_conditions(((9, 9),))
    assert not square.meets_conditions(((9, 8),))


def test_integers_bound_the_sizes_of_calls(compiled: Compile) -> None:
    g = compiled(lambda x: x.cumsum(0), dynamic=True, dynamic_shapes=True)
    for rows, captures in ((4, 1), (32, 1), (33, 2)):
        x = torch.randint(0, 9, (rows, 3))
        agree(g(x), x.cumsum(0))
        assert counts()["captures"] == captures
    assert not corrections()


def test_sizes_of_one_are_refused() -> None:
    with pytest.raises(CaptureError, match="0 or 1"):
        traced(lambda x: x * 2, torch.randn(1, 3))


def test_resizing_and_means(compiled: Compile) -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        twice = F.interpolate(x, scale_factor=2.0, mode="nearest")
        other = F.interpolate(x, size=(x.shape[2] * 2 + 1, x.shape[3] + 3), mode="bilinear")
        return twice, other, x.reshape(x.shape[0], -1).sum(-1) / x.numel(), F.adaptive_avg_pool2d(x, 1)

    g = compiled(f, dynamic=True, dynamic_shapes=True)
    for shape in ((2, 3, 12, 16), (3, 3, 20, 30), (5, 3, 13, 17)):
        x = torch.randn(shape)
        agree(g(x), f(x))
    assert counts()["calls"] == 3
    assert not corrections()


@pytest.mark.parametrize(
    "options",
    [{"scale_factor": 1.7}, {"scale_factor": 1.5, "mode": "linear"}, {"scale_factor": 0.6, "recompute_scale_factor": True}],
    ids=str,
)
def test_sizes_that_a_decimal_number_gives(compiled: Compile, options: dict[str, Any]) -> None:
    layer = torch.nn.Conv1d(4, 4, 1).eval()
    g = compiled(lambda x: F.interpolate(layer(x), **options))
    for length in (3, 5, 9, 4, 30):
        x = torch.randn(1, 4, length)
        agree(g(x), F.interpolate(layer(x), **options))
    assert not fallbacks()


@pytest.mark.parametrize("is_causal", [False, True])
def test_attention_has_the_layout_of_pytorch_s_kernel(compiled: Compile, is_causal: bool) -> None:
    layer = torch.nn.Linear(8, 24).requires_grad_(False)

    def attend(x: torch.Tensor) -> torch.Tensor:
        q, k, v = layer(x).view(1, x.shape[1], 3, 2, 4).permute(2, 0, 3, 1, 4)
        return F.scaled_dot_product_attention(q, k, v, is_causal=is_causal)

    g = compiled(attend, dynamic=True, dynamic_shapes=True)
    joined = compiled(lambda x: attend(x).transpose(1, 2).view(1, x.shape[1], 8), dynamic=True, dynamic_shapes=True)
    for length in (3, 9, 4):
        x = torch.randn(1, length, 8)
        agree(g(x), attend(x))
        assert g(x).stride() == attend(x).stride()
        agree(joined(x), attend(x).transpose(1, 2).view(1, length, 8))
    assert not corrections()
