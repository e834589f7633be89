"""Remove operators that return their input; tracing leaves many of them."""

from __future__ import annotations

import torch
from torch.fx import GraphModule, Node

_aten = torch.ops.aten

_IDENTITIES = frozenset({_aten.detach.default, _aten.alias.default, _aten.lift_fresh_copy.default, _aten.lift_fresh.default})
_IF_SAME_DTYPE = frozenset({_aten._to_copy.default})


def remove_identities(gm: GraphModule) -> GraphModule:
    """Replace ``detach``, ``alias``, ``lift_fresh`` and dtype casts to the same dtype by their input.

    The graph must have no in-place operators, so that a copy and its original cannot differ.
    """
    for node in list(gm.graph.nodes):
        if node.op == "call_function" and _is_identity(node):
            node.replace_all_uses_with(node.args[0])
            gm.graph.erase_node(node)
    return gm


def _is_identity(node: Node) -> bool:
    if node.target in _IDENTITIES:
        return True
    source = node.args[0] if node.args else None
    if node.target in _IF_SAME_DTYPE and isinstance(source, Node):
        before, after = source.meta.get("val"), node.meta.get("val")
        return before is not None and after is not None and before.dtype == after.dtype
    return False
