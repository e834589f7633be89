"""Results have the strides that PyTorch gives them, whichever way a call takes."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.nn import functional as F

import ov_backend
from ov_backend import Settings
from tests.helpers.small import engine_for

Strict = Callable[..., Settings]
Function = Callable[[torch.Tensor], Any]

CONV, LINEAR = torch.nn.Conv2d(4, 8, 3, padding=1), torch.nn.Linear(8, 8)
LAST = torch.nn.Conv2d(4, 8, 1).to(memory_format=torch.channels_last)
NORM, LAYER = torch.nn.GroupNorm(2, 4), torch.nn.LayerNorm(8)

#: Of pictures [B, 4, H, 8].
FUNCTIONS: list[Function] = [
    lambda x: x.sin(),
    lambda x: x + x.mean(),
    lambda x: CONV(x),
    lambda x: LAST(x),
    lambda x: NORM(x),
    lambda x: LINEAR(x),
    lambda x: LAYER(x),
    lambda x: LINEAR(x).transpose(1, 3),
    lambda x: F.relu(x).permute(0, 2, 3, 1),
    lambda x: F.elu(x),
    lambda x: F.mish(x),
    lambda x: x.softmax(1),
    lambda x: (x * 2).permute(3, 1, 0, 2),
    lambda x: (x * 2)[:, 1:3],
    lambda x: (x * 2)[..., ::2],
    lambda x: (x * 2)[:, -1],
    lambda x: x.mean(1, True).expand(-1, 5, -1, -1),
    lambda x: x.sum().expand(3, 4),
    lambda x: (x * 2).unfold(3, 3, 2),
    lambda x: (x * 2).diagonal(0, 1, 3),
    lambda x: F.max_pool2d(x, 2),
    lambda x: F.avg_pool2d(x, 2),
    lambda x: F.interpolate(x, scale_factor=2.0),
    lambda x: torch.cat([x, x * 2], 1),
    lambda x: torch.stack([x, x * 2], 1),
    lambda x: torch.where(x > 0, x, 0.0),
    lambda x: x > 0,
    lambda x: x.sum(1),
    lambda x: x.var(1),
    lambda x: x.cumsum(2),
    lambda x: x.sin().contiguous(),
    lambda x: x.sin().contiguous(memory_format=torch.channels_last),
    lambda x: x.sin().to(torch.float16),
    lambda x: F.scaled_dot_product_attention(x, x, x),
    lambda x: F.scaled_dot_product_attention(x, x, x).transpose(1, 2),
    lambda x: x @ x.mT,
    lambda x: (x.sin(), x.cos().mT),
    lambda x: x.sin().chunk(2, 1),
    lambda x: F.pad(x, (1, 1)),
    lambda x: x.sin()[:, [0, 2]],
    lambda x: x.cos().unsqueeze(1),
    lambda x: x.exp().flatten(1),
    lambda x: x.abs().log1p(),
    lambda x: torch.ones(3, 4).T + x.mean(),
]
LAYOUTS: dict[str, Function] = {
    "contiguous": lambda x: x,
    "channels last": lambda x: x.contiguous(memory_format=torch.channels_last),
    "transposed": lambda x: x.mT.contiguous().mT,
    "permuted": lambda x: x.permute(0, 3, 2, 1).contiguous().permute(0, 3, 2, 1),
    "with gaps": lambda x: torch.cat([x, x], 1)[:, :4],
    "expanded": lambda x: x[:1].expand(x.shape),
    "one picture": lambda x: x[:1],
}


def picture(layout: str, height: int = 8) -> torch.Tensor:
    return LAYOUTS[layout](torch.randn(2, 4, height, 8))


class Several(torch.nn.Module):
    """Several functions; ``then`` is called with each of their results."""

    def __init__(self, functions: list[Function], then: Function = lambda y: y) -> None:
        super().__init__()
        self.functions, self.then = functions, then
        self.layers = torch.nn.ModuleList([CONV, LAST, NORM, LINEAR, LAYER])

    def forward(self, x: torch.Tensor) -> list[Any]:
        results = [result for function in self.functions for result in flat(function(x))]
        return [self.then(result) if result.is_floating_point() else result for result in results]


def flat(result: Any) -> list[torch.Tensor]:
    return list(result) if isinstance(result, (tuple, list)) else [result]


def traced_alike(x: torch.Tensor) -> list[Function]:
    """Some of the functions of whose results PyTorch's own trace says the same strides as eager."""
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    with mode:
        fakes = [[each.stride() for each in flat(function(mode.from_tensor(x)))] for function in FUNCTIONS]
    alike = [f for f, strides in zip(FUNCTIONS, fakes) if [each.stride() for each in flat(f(x))] == strides]
    assert len(alike) > len(FUNCTIONS) - 4
    return random.Random(str(x.stride())).sample(alike, 20)


def assert_laid_out_alike(actual: list[torch.Tensor], expected: list[torch.Tensor]) -> None:
    assert [each.stride() for each in actual] == [each.stride() for each in expected]
    for one, other in zip(actual, expected):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-2)
        for form in (torch.contiguous_format, torch.channels_last) if one.dim() == 4 else ():
            assert one.is_contiguous(memory_format=form) == other.is_contiguous(memory_format=form)


@pytest.fixture(autouse=True)
def _no_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


@pytest.mark.parametrize("layout", LAYOUTS)
def test_results_of_a_network(strict: Strict, layout: str) -> None:
    x = picture(layout)
    module = Several(traced_alike(x)).eval()
    network = engine_for(strict(), module)
    assert_laid_out_alike(network(x), module(x))
    assert network.statistics.calls == 1


def test_one_network_answers_every_layout_and_so_does_the_store(strict: Strict) -> None:
    """A graph of one layout answers no other."""
    module = Several([lambda x: x.sin(), lambda x: CONV(x), lambda x: x.exp()[:, :2]]).eval()
    for hits in (0, len(LAYOUTS)):
        network = engine_for(strict(), module)
        for layout in (*LAYOUTS, *LAYOUTS):
            x = picture(layout)
            assert_laid_out_alike(network(x), module(x))
        assert network.statistics.graph_hits == hits
    CONV.to(memory_format=torch.channels_last)
    try:
        assert_laid_out_alike(network(x), module(x))
    finally:
        CONV.to(memory_format=torch.contiguous_format)


@pytest.mark.parametrize("layout", ["contiguous", "channels last", "permuted", "expanded"])
def test_results_of_torch_compile_and_what_pytorch_reads_of_parts(layout: str) -> None:
    x = picture(layout)
    module = Several(traced_alike(x), then=lambda y: torch.special.erfinv(y.tanh()))
    compiled = torch.compile(module, backend="openvino_fx", options={"precision": "f32", "fallback": "raise"})
    assert_laid_out_alike(compiled(x), module(x))
    (stats,) = ov_backend.stats().values()
    assert (stats["calls"], stats["in_pytorch"]["aten.erfinv.default"] > 10) == (1, True)


@pytest.mark.parametrize("layout", ["contiguous", "channels last", "transposed"])
def test_results_with_dynamic_sizes(layout: str) -> None:
    functions = [*FUNCTIONS[:13], lambda x: (x * 2)[:, 1:3], lambda x: x.mean(1, True).expand(-1, 5, -1, -1), FUNCTIONS[-3]]
    module = Several([*functions, lambda x: x])
    options = {"precision": "f32", "fallback": "raise", "dynamic_shapes": True}
    compiled = torch.compile(module, backend="openvino_fx", options=options)
    for height in (8, 10, 6):
        x = picture(layout, height)
        torch._dynamo.maybe_mark_dynamic(x, 2)
        assert_laid_out_alike(compiled(x), module(x))
    assert sum(stats["compiles"] for stats in ov_backend.stats().values()) == 1


def test_a_view_after_a_graph_break() -> None:
    def forward(x: torch.Tensor) -> torch.Tensor:
        y = F.scaled_dot_product_attention(*LINEAR(x).view(1, -1, 3, 2, 8).permute(2, 0, 3, 1, 4))
        torch._dynamo.graph_break()
        return y.transpose(1, 2).view(1, -1, 16) * 2

    x = torch.randn(18, 8)
    torch.testing.assert_close(torch.compile(forward, backend="openvino_fx", options={"precision": "f32"})(x), forward(x))


def test_results_are_the_caller_s_own() -> None:
    def forward(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x.sin()
        return y, y.to(torch.float32, copy=True), x.to(torch.float32, copy=True), y.clone(), x

    options = {"precision": "f32", "fallback": "raise"}
    x = torch.randn(3)
    results = torch.compile(forward, backend="openvino_fx", options=options)(x)
    assert len({each.data_ptr() for each in results}) == 5
    for actual, expected in zip(results, forward(x)):
        torch.testing.assert_close(actual, expected)
