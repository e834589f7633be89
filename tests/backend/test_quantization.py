"""PT2E quantization: pairs of ``quantize`` and ``dequantize`` in a graph become arithmetic in int8."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import ov_backend
from ov_backend import backend
from tests.backend.conftest import Compile, agree, calls, fallbacks

decomposed = pytest.importorskip("torch.ao.quantization.fx._decomposed", reason="moved to torchao")


def precisions(kind: str) -> list[str]:
    """What the layers of a kind run in, from the runtime models of everything that is compiled."""
    found = []
    for engine in backend._engines.values():
        for key in engine.compiled:
            held = engine.compiled.peek(key)
            assert held is not None
            for part in held.value.program.parts.values():
                layers = [op.get_rt_info() for op in part._request.get_compiled_model().get_runtime_model().get_ops()]
                found += [info["runtimePrecision"].astype(str) for info in layers if info["layerType"].astype(str) == kind]
    return found


class Quantized(torch.nn.Module):
    """Two convolutions as ``convert_pt2e(fold_quantize=False)`` leaves them: weights in f32, quantized in the graph."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Conv2d(3, 16, 3, padding=1), torch.nn.Conv2d(16, 16, 3, padding=1)
        self.register_buffer("scales", torch.stack([self_quantized(layer)[1] for layer in (self.first, self.second)]))
        self.register_buffer("zeros", torch.zeros(16, dtype=torch.int64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.quantized(self.first, x, self.scales[0], 8.0 / 255, 128))
        return self.quantized(self.second, x, self.scales[1], 6.0 / 255, 0)

    def quantized(
        self, layer: torch.nn.Conv2d, x: torch.Tensor, scales: torch.Tensor, scale: float, zero: int
    ) -> torch.Tensor:
        ops = torch.ops.quantized_decomposed
        x = ops.quantize_per_tensor.default(x, scale, zero, 0, 255, torch.uint8)
        x = ops.dequantize_per_tensor.default(x, scale, zero, 0, 255, torch.uint8)
        w = ops.quantize_per_channel.default(layer.weight, scales, self.zeros, 0, -128, 127, torch.int8)
        w = ops.dequantize_per_channel.default(w, scales, self.zeros, 0, -128, 127, torch.int8)
        return F.conv2d(x, w, layer.bias, padding=1)


def test_pairs_become_int8(compiled: Compile) -> None:
    net = Quantized().eval()
    x = torch.randn(1, 3, 24, 24)
    want, exact = net(x), net.second(F.relu(net.first(x)))
    got = compiled(net)(x)
    assert float((got - want).abs().max()) <= float((want - exact).abs().max()), "no further off than the quantizer"
    assert calls() == 1
    assert not fallbacks()
    assert len(precisions("Convolution")) == 2
    assert set(precisions("Convolution")) <= {"u8", "i8"}


def test_stored_integers_are_undone_in_pytorch(compiled: Compile) -> None:
    net = Quantized().eval()
    values, scales, zeros = self_quantized(net.first)

    def f(x: torch.Tensor) -> torch.Tensor:
        w = torch.ops.quantized_decomposed.dequantize_per_channel.default(values, scales, zeros, 0, -128, 127, torch.int8)
        return F.relu(F.conv2d(x, w, net.first.bias, padding=1))

    x = torch.randn(1, 3, 24, 24)
    agree(compiled(f)(x), f(x))
    (network,) = ov_backend.stats().values()
    assert network["in_pytorch"] == {"quantized_decomposed.dequantize_per_channel.default": 1}


def self_quantized(layer: torch.nn.Conv2d) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    scales = layer.weight.detach().abs().amax((1, 2, 3)) / 127
    zeros = torch.zeros(scales.shape, dtype=torch.int64)
    per_channel = torch.ops.quantized_decomposed.quantize_per_channel.default
    return per_channel(layer.weight.detach(), scales, zeros, 0, -128, 127, torch.int8), scales, zeros


def test_x86_quantizer(compiled: Compile) -> None:
    """The guide's own steps, where torchao is installed."""
    pt2e = pytest.importorskip("torchao.quantization.pt2e.quantize_pt2e")
    x86: Any = pytest.importorskip("torchao.quantization.pt2e.quantizer.x86_inductor_quantizer")
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 16, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(16 * 36, 4)).eval()
    x = torch.randn(2, 3, 8, 8)
    quantizer = x86.X86InductorQuantizer()
    quantizer.set_global(x86.get_default_x86_inductor_quantization_config())
    prepared: Callable[..., Any] = pt2e.prepare_pt2e(torch.export.export(net, (x,)).module(), quantizer)
    for _ in range(4):
        prepared(torch.randn(2, 3, 8, 8))
    prepared(x)
    quantized = pt2e.convert_pt2e(prepared, fold_quantize=False)
    want, exact = quantized(x), net(x)
    got = compiled(quantized)(x)
    agree(got, want, float((want - exact).abs().max()))
    assert not fallbacks()
    assert set(precisions("Convolution") + precisions("FullyConnected")) <= {"u8", "i8"}
