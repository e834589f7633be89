"""Replace the attention operators of single kernels by ``scaled_dot_product_attention``, which OpenVINO has as one operator.

A trace holds the operator of the kernel that PyTorch chose. That operator also returns a log-sum-exp and takes its mask by
keyword; the converter does not support both in all cases (it refuses causal attention).
"""

from __future__ import annotations

import torch
from torch.fx import GraphModule, Node

from ov_backend.fx_utils import only_first_result_is_read

_aten = torch.ops.aten
_KERNELS = tuple(
    getattr(_aten, name).default
    for name in ("_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_flash_attention")
    if hasattr(_aten, name)
)


def unify_attention(gm: GraphModule) -> GraphModule:
    """Replace attention kernels whose log-sum-exp no node reads."""
    for node in list(gm.graph.nodes):
        if node.op == "call_function" and node.target in _KERNELS and only_first_result_is_read(node):
            _replace(gm, node)
    return gm


def _replace(gm: GraphModule, node: Node) -> None:
    query, key, value, *rest = node.args
    dropout = rest[0] if rest else node.kwargs.get("dropout_p", 0.0)
    causal = rest[1] if len(rest) > 1 else node.kwargs.get("is_causal", False)
    mask, scale = node.kwargs.get("attn_mask"), node.kwargs.get("scale")
    with gm.graph.inserting_before(node):
        keywords = {} if scale is None else {"scale": scale}
        unified = gm.graph.call_function(
            _aten.scaled_dot_product_attention.default, (query, key, value, mask, dropout, causal), keywords
        )
    result = node.meta.get("val")
    if result is not None:
        unified.meta["val"] = result[0]
    for user in list(node.users):
        if user.users:
            user.replace_all_uses_with(unified)
        gm.graph.erase_node(user)
    gm.graph.erase_node(node)
