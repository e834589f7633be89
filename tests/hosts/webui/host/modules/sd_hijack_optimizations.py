"""Two of the WebUI's variants of attention: in slices, the default on a CPU, and in one piece."""

from __future__ import annotations

from typing import Any

import torch
from einops import rearrange

from modules import shared
from modules.hypernetworks import hypernetwork


def _inputs(self: Any, x: Any, context: Any) -> tuple[Any, Any, Any]:
    context = x if context is None else context
    context_k, context_v = hypernetwork.apply_hypernetworks(shared.loaded_hypernetworks, context)
    return self.to_q(x), self.to_k(context_k), self.to_v(context_v)


def split_cross_attention_forward(self: Any, x: Any, context: Any = None, mask: Any = None, **kwargs: Any) -> Any:
    h = self.heads
    q, k, v = (rearrange(t, "b n (h d) -> (b h) n d", h=h) for t in _inputs(self, x, context))
    result = torch.zeros(q.shape[0], q.shape[1], v.shape[2], dtype=q.dtype)
    for i in range(0, q.shape[1], 64):
        weights = (torch.einsum("b i d, b j d -> b i j", q[:, i : i + 64], k) * self.scale).softmax(dim=-1)
        result[:, i : i + 64] = torch.einsum("b i j, b j d -> b i d", weights, v)
    return self.to_out(rearrange(result, "(b h) n d -> b n (h d)", h=h))


def scaled_dot_product_attention_forward(self: Any, x: Any, context: Any = None, mask: Any = None, **kwargs: Any) -> Any:
    q, k, v = (rearrange(t, "b n (h d) -> b h n d", h=self.heads) for t in _inputs(self, x, context))
    result = torch.nn.functional.scaled_dot_product_attention(q, k, v, dropout_p=0.0, is_causal=False)
    return self.to_out(rearrange(result, "b h n d -> b n (h d)"))


def sdp_attnblock_forward(self: Any, x: Any) -> Any:
    h = x.shape[2]
    normed = self.norm(x)
    q, k, v = (rearrange(t, "b c h w -> b (h w) c").contiguous() for t in (self.q(normed), self.k(normed), self.v(normed)))
    result = torch.nn.functional.scaled_dot_product_attention(q, k, v, dropout_p=0.0, is_causal=False)
    return x + self.proj_out(rearrange(result, "b (h w) c -> b c h w", h=h))
