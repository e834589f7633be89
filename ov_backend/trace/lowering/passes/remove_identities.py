"""Remove operators that return their input; tracing leaves many of them."""

from __future__ import annotations

from collections import Counter

import torch
from torch.fx import GraphModule, Node

from ov_backend.core.fx_utils import output_node

_aten = torch.ops.aten

_VIEWS = frozenset({_aten.detach.default, _aten.alias.default, _aten.lift_fresh.default})
_COPIES = frozenset({_aten._to_copy.default, _aten.lift_fresh_copy.default})


def remove_identities(gm: GraphModule) -> GraphModule:
    """Replace ``detach``, ``alias``, ``lift_fresh`` and copies of the same dtype and strides by their input.

    The graph must have no in-place operators, so that a copy and its original cannot differ. A result that is a ``detach`` of an
    input, or of another result, stays: it is another object, of which a caller may ask for gradients. One that is a copy of
    these becomes a ``clone``: it has memory of its own, to which a caller may write.
    """
    kept = _kept(gm)
    for node in list(gm.graph.nodes):
        if not _is_identity(node):
            continue
        if node not in kept:
            node.replace_all_uses_with(node.args[0])
            gm.graph.erase_node(node)
        elif node.target in _COPIES:
            node.target, node.args, node.kwargs = _aten.clone.default, node.args[:1], {}
    return gm


def _kept(gm: GraphModule) -> set[Node]:
    """The results that are new objects for what the caller has, or is given as another result."""
    results = list(dict.fromkeys(output_node(gm).all_input_nodes))
    sources = Counter(_source(result) for result in results)
    shared = [result for result in results if _is_identity(result)]
    return {result for result in shared if _source(result).op == "placeholder" or sources[_source(result)] > 1}


def _source(node: Node) -> Node:
    while _is_identity(node):
        node = node.args[0]
    return node


def _is_identity(node: Node) -> bool:
    if node.op != "call_function" or node.target not in _VIEWS | _COPIES:
        return False
    if node.target in _VIEWS or not isinstance(node.args[0], Node):
        return node.target in _VIEWS
    before, after = node.args[0].meta.get("val"), node.meta.get("val")
    if before is None or after is None:  # torch 2.1 notes no values of constants
        return node.target is _aten.lift_fresh_copy.default
    return (before.dtype, before.stride()) == (after.dtype, after.stride())
