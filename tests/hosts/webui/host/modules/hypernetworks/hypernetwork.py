"""Hypernetworks change the context of every attention; the WebUI's unoptimized attention applies them."""

from __future__ import annotations

from typing import Any

import torch
from einops import rearrange

from modules import shared


class Layer(torch.nn.Module):
    def __init__(self, dim: int, seed: int) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(dim, dim)
        self.multiplier = 1.0
        generator = torch.Generator().manual_seed(seed)
        for parameter in self.parameters():
            parameter.data = torch.randn(parameter.shape, generator=generator) / parameter.shape[0] ** 0.5

    def forward(self, x: Any) -> Any:
        return x + self.linear(x) * self.multiplier


class Hypernetwork:
    """Layers for the widths of context and features."""

    def __init__(self, name: str, dims: tuple[int, ...], seed: int = 0) -> None:
        self.name = name
        self.layers = {dim: (Layer(dim, seed + 1).eval(), Layer(dim, seed + 2).eval()) for dim in dims}

    def set_multiplier(self, value: float) -> None:
        for pair in self.layers.values():
            for layer in pair:
                layer.multiplier = value


def apply_hypernetworks(hypernetworks: list[Any], context: Any) -> tuple[Any, Any]:
    k = v = context
    for hypernetwork in hypernetworks:
        layers = hypernetwork.layers.get(context.shape[2])
        if layers is not None:
            k, v = layers[0](k), layers[1](v)
    return k, v


def attention_CrossAttention_forward(self: Any, x: Any, context: Any = None, mask: Any = None) -> Any:
    h = self.heads
    context = x if context is None else context
    context_k, context_v = apply_hypernetworks(shared.loaded_hypernetworks, context)
    q, k, v = self.to_q(x), self.to_k(context_k), self.to_v(context_v)
    q, k, v = (rearrange(t, "b n (h d) -> (b h) n d", h=h) for t in (q, k, v))
    weights = (torch.einsum("b i d, b j d -> b i j", q, k) * self.scale).softmax(dim=-1)
    return self.to_out(rearrange(torch.einsum("b i j, b j d -> b i d", weights, v), "(b h) n d -> b n (h d)", h=h))
