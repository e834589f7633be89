"""Replace the attention operators of single kernels by ``scaled_dot_product_attention``, which OpenVINO has as one operator.

A trace holds the operator of the kernel that PyTorch chose. That operator also returns a log-sum-exp and takes its mask by
keyword; the converter does not support both in all cases (it refuses causal attention). It also lets several heads of the query
share a head of key and value ("grouped queries", ``enable_gqa``); OpenVINO's operator asks for as many of each.
"""

from __future__ import annotations

import torch
from torch.fx import GraphModule, Node

from ov_backend.core.autocast_regions import mark_as
from ov_backend.core.fx_utils import argument, call, only_first_result_is_read

_aten = torch.ops.aten
_KERNELS = tuple(
    getattr(_aten, name).default
    for name in ("_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_flash_attention")
    if hasattr(_aten, name)
)


def unify_attention(gm: GraphModule) -> GraphModule:
    """Replace attention kernels whose log-sum-exp no node reads, and repeat the heads that queries share."""
    for node in list(gm.graph.nodes):
        if node.op == "call_function" and node.target in _KERNELS and only_first_result_is_read(node):
            _replace(gm, node)
    for node in gm.graph.nodes:
        if node.target is _aten.scaled_dot_product_attention.default:
            query, *shared = node.args[:3]
            node.args = (query, *(_with_heads(node, each, query.meta["val"]) for each in shared), *node.args[3:])
    return gm


def _replace(gm: GraphModule, node: Node) -> None:
    mask, scale = argument(node, "attn_mask"), argument(node, "scale")
    with gm.graph.inserting_before(node):
        unified = gm.graph.call_function(
            _aten.scaled_dot_product_attention.default,
            (*node.args[:3], mask, argument(node, "dropout_p"), argument(node, "is_causal")),
            {} if scale is None else {"scale": scale},
        )
    mark_as(unified, node)
    result = node.meta.get("val")
    if result is not None:
        unified.meta["val"] = result[0]
    for user in list(node.users):
        if user.users:
            user.replace_all_uses_with(unified)
        gm.graph.erase_node(user)
    gm.graph.erase_node(node)


def _with_heads(attention: Node, source: Node, query: torch.Tensor) -> Node:
    """``source``, a key or a value ``[..., H, S, E]``, its heads repeated for those of the query that share them."""
    value = source.meta["val"]
    if query.dim() < 3 or value.dim() != query.dim():
        return source
    heads, own = query.shape[-3], value.shape[-3]
    if not isinstance(heads, int) or not isinstance(own, int) or heads == own:
        return source
    with attention.graph.inserting_before(attention):
        apart = call(attention.graph, _aten.unsqueeze.default, (source, -3), value.unsqueeze(-3))
        sizes = [-1] * value.dim()
        sizes.insert(-2, heads // own)
        copies = call(attention.graph, _aten.expand.default, (apart, sizes), apart.meta["val"].expand(sizes))
        # contiguous, else PyTorch has no view of it
        whole = call(
            attention.graph, _aten.clone.default, (copies,), copies.meta["val"], memory_format=torch.contiguous_format
        )
        batch = [_size(attention, source, dim) for dim in range(value.dim() - 3)]
        shape = [*batch, heads, -1, _size(attention, source, value.dim() - 1)]
        return call(attention.graph, _aten.view.default, (whole, shape), copies.meta["val"].flatten(-4, -3))


def _size(attention: Node, source: Node, dim: int) -> int | Node:
    size = source.meta["val"].shape[dim]
    return size if isinstance(size, int) else call(attention.graph, _aten.sym_size.int, (source, dim), size)
