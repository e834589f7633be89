"""Make attention return 0 where a mask excludes every key, as PyTorch does: OpenVINO returns NaN there."""

from __future__ import annotations

import math

import torch
from torch.fx import GraphModule, Node

_aten = torch.ops.aten
#: Since torch 2.5 PyTorch's softmax within attention is one that returns 0 for rows without keys.
_RETURNS_ZERO = hasattr(_aten, "_safe_softmax")


def zero_masked_rows(gm: GraphModule) -> GraphModule:
    """Select 0 for the rows of attention whose mask excludes every key."""
    if not _RETURNS_ZERO:
        return gm
    for node in list(gm.graph.nodes):
        if node.target is _aten.scaled_dot_product_attention.default and len(node.args) > 3 and isinstance(node.args[3], Node):
            _select(gm, node, node.args[3])
    return gm


def _select(gm: GraphModule, node: Node, mask: Node) -> None:
    """``mask`` is [..., L, S], the result [..., L, E]."""
    result, masked = node.meta["val"], mask.meta["val"]
    with gm.graph.inserting_after(node):
        selected = gm.graph.call_function(_aten.where.self, ())
    with gm.graph.inserting_before(selected):
        if masked.dtype is torch.bool:
            keeps, value = mask, masked
        else:
            keeps, value = gm.graph.call_function(_aten.ne.Scalar, (mask, -math.inf)), masked.ne(-math.inf)
            keeps.meta["val"] = value
        alive = gm.graph.call_function(_aten.any.dim, (keeps, -1, True))
        alive.meta["val"] = value.any(-1, True)
        zero = gm.graph.call_function(_aten.zeros_like.default, (node,))
        zero.meta["val"] = result
    selected.meta["val"] = result
    node.replace_all_uses_with(selected, delete_user_cb=lambda user: user not in (selected, zero))
    selected.args = (alive, node, zero)
