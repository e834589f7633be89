"""PT2E quantization: pairs of ``quantize`` and ``dequantize`` in a graph become arithmetic in int8."""

from __future__ import annotations

import importlib.util
import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import ov_backend
from ov_backend.model.runtime.saturation import multiplies_8_bits_exactly
from ov_backend.torch_compile import backend
from tests.helpers.torch_compile import Compile, agree, calls, fallbacks

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


def expected_precisions() -> set[str]:
    """8 bits, or floating point where products of 8-bit integers overflow."""
    return {"u8", "i8"} if multiplies_8_bits_exactly() else {"f32"}


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
    assert set(precisions("Convolution")) <= expected_precisions()


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


def quantizer_tools() -> tuple[Any, Any, dict[str, bool]]:
    """``quantize_pt2e``, the quantizer's module, and what ``convert_pt2e`` takes: of torchao, or of a torch that has them."""
    if importlib.util.find_spec("torchao") is not None:
        folder = "torchao.quantization.pt2e"
        return pytest.importorskip(f"{folder}.quantize_pt2e"), x86_module(f"{folder}.quantizer"), {"fold_quantize": False}
    pt2e = pytest.importorskip("torch.ao.quantization.quantize_pt2e", reason="it is in torchao now, which is not installed")
    folds = "fold_quantize" in inspect.signature(pt2e.convert_pt2e).parameters  # since torch 2.2; before, it never folded
    return pt2e, x86_module("torch.ao.quantization.quantizer"), {"fold_quantize": False} if folds else {}


def x86_module(folder: str) -> Any:
    return pytest.importorskip(f"{folder}.x86_inductor_quantizer")


def exported(net: torch.nn.Module, x: torch.Tensor) -> Any:
    """The graph that the quantizer of this torch can annotate."""
    if hasattr(torch.export, "export") and hasattr(torch.compiler, "set_stance"):
        return torch.export.export(net, (x,)).module()
    # On torch 2.1 ``capture_pre_autograd_graph`` leaves aten.conv2d, and its quantizer asks for aten.convolution.
    return torch._dynamo.export(net, aten_graph=True)(x)[0]


def test_x86_quantizer(compiled: Compile) -> None:
    """The guide's own steps."""
    pt2e, x86, convert = quantizer_tools()
    layers = [torch.nn.Conv2d(3, 16, 3), torch.nn.ReLU(), torch.nn.Conv2d(16, 16, 3), torch.nn.ReLU(), torch.nn.Flatten()]
    net = torch.nn.Sequential(*layers, torch.nn.Linear(16 * 16, 4)).eval()
    x = torch.randn(2, 3, 8, 8)
    quantizer = x86.X86InductorQuantizer()
    quantizer.set_global(x86.get_default_x86_inductor_quantization_config())
    prepared: Callable[..., Any] = pt2e.prepare_pt2e(exported(net, x), quantizer)
    for _ in range(4):
        prepared(torch.randn(2, 3, 8, 8))
    prepared(x)
    quantized = pt2e.convert_pt2e(prepared, **convert)
    want, exact = quantized(x), net(x)
    got = compiled(quantized)(x)
    assert float((want - exact).abs().max()) > 0, "it is quantized"
    assert float((got - want).abs().max()) <= float((want - exact).abs().max()), "no further off than the quantizer"
    assert not fallbacks()
    kinds = {"Convolution": 2, "FullyConnected": 1}
    assert {kind: len(precisions(kind)) for kind in kinds} == kinds
    assert {precision for kind in kinds for precision in precisions(kind)} <= expected_precisions()
