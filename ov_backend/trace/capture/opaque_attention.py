"""Keep attention whole in a trace with symbolic sizes, where PyTorch would choose its kernel by conditions on the sizes.

While tracing, attention is an operator of our own; afterwards it is written as ``scaled_dot_product_attention`` again.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import GraphModule
from torch.overrides import TorchFunctionMode

_LIBRARY = torch.library.Library("ov_backend", "DEF")
_LIBRARY.define("attention(Tensor q, Tensor k, Tensor v, Tensor? mask, bool causal, float? scale) -> Tensor")
_LIBRARY.impl("attention", lambda q, k, v, mask, causal, scale: q.new_empty((*q.shape[:-1], v.shape[-1])), "Meta")

_FUNCTION = torch.nn.functional.scaled_dot_product_attention


class WholeAttention(TorchFunctionMode):
    """While active, in this thread, attention without dropout is one operator."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is _FUNCTION:
            return _attention(*args, **kwargs)
        return func(*args, **kwargs)


def _attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    **others: Any,
) -> torch.Tensor:
    ranks = {query.dim(), key.dim(), value.dim()}
    if dropout_p or any(others.values()) or len(ranks) > 1 or not _have_heads(query, key, value, enable_gqa):
        named = {"attn_mask": attn_mask, "dropout_p": dropout_p, "is_causal": is_causal, "scale": scale, **others}
        return _FUNCTION(query, key, value, **named, **({"enable_gqa": True} if enable_gqa else {}))
    return torch.ops.ov_backend.attention(query, key, value, attn_mask, is_causal, scale)


def _have_heads(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, enable_gqa: bool) -> bool:
    """Whether key and value have as many heads as the query, or with ``enable_gqa`` a known part of them."""
    heads = [each.shape[-3] if each.dim() > 2 else 1 for each in (query, key, value)]
    if not enable_gqa or not all(isinstance(each, int) for each in heads):
        return query.shape[:-2] == key.shape[:-2]
    return query.shape[:-3] == key.shape[:-3] and all(heads[0] % each == 0 for each in heads[1:])


def write_attention(gm: GraphModule) -> GraphModule:
    """Spell attention as PyTorch does."""
    for node in gm.graph.nodes:
        if node.target is torch.ops.ov_backend.attention.default:
            *tensors, causal, scale = node.args
            node.target = torch.ops.aten.scaled_dot_product_attention.default
            node.args = (*tensors, 0.0, causal)
            node.kwargs = {} if scale is None else {"scale": scale}
    gm.recompile()
    return gm
