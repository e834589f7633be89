"""Remove operators that return their input; tracing leaves many of them."""

from __future__ import annotations

from collections import Counter

import torch
from torch.fx import GraphModule, Node

from ov_backend.fx_utils import output_node

_aten = torch.ops.aten

_IDENTITIES = frozenset({_aten.detach.default, _aten.alias.default, _aten.lift_fresh_copy.default, _aten.lift_fresh.default})
_NEW_OBJECTS = frozenset({_aten.detach.default, _aten.alias.default})
_IF_SAME_DTYPE = frozenset({_aten._to_copy.default})


def remove_identities(gm: GraphModule) -> GraphModule:
    """Replace ``detach``, ``alias``, ``lift_fresh`` and dtype casts to the same dtype by their input.

    The graph must have no in-place operators, so that a copy and its original cannot differ. A result that is a ``detach`` of an
    input, or of another result, stays: it is another object, of which a caller may ask for gradients.
    """
    kept = _kept(gm)
    for node in list(gm.graph.nodes):
        if node.op == "call_function" and _is_identity(node) and node not in kept:
            node.replace_all_uses_with(node.args[0])
            gm.graph.erase_node(node)
    return gm


def _kept(gm: GraphModule) -> set[Node]:
    """The results that are new objects for what the caller has, or is given as another result."""
    results = list(dict.fromkeys(output_node(gm).all_input_nodes))
    sources = Counter(_source(result) for result in results)
    shared = [result for result in results if result.target in _NEW_OBJECTS]
    return {result for result in shared if _source(result).op == "placeholder" or sources[_source(result)] > 1}


def _source(node: Node) -> Node:
    while node.op == "call_function" and _is_identity(node):
        node = node.args[0]
    return node


def _is_identity(node: Node) -> bool:
    if node.target in _IDENTITIES:
        return True
    source = node.args[0] if node.args else None
    if node.target in _IF_SAME_DTYPE and isinstance(source, Node):
        before, after = source.meta.get("val"), node.meta.get("val")
        return before is not None and after is not None and before.dtype == after.dtype
    return False
