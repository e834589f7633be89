"""Make attention return 0 where a mask excludes every key, as PyTorch does: OpenVINO returns NaN there."""

from __future__ import annotations

import math

import torch
from torch.fx import GraphModule, Node

from ov_backend.core.fx_utils import call

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
        selected = call(gm.graph, _aten.where.self, (), result)
    with gm.graph.inserting_before(selected):
        if masked.dtype is torch.bool:
            keeps, value = mask, masked
        else:
            value = masked.ne(-math.inf)
            keeps = call(gm.graph, _aten.ne.Scalar, (mask, -math.inf), value)
        alive = call(gm.graph, _aten.any.dim, (keeps, -1, True), value.any(-1, True))
        zero = call(gm.graph, _aten.zeros_like.default, (node,), result)
    node.replace_all_uses_with(selected, delete_user_cb=lambda user: user not in (selected, zero))
    selected.args = (alive, node, zero)
