"""Have no one else read a softmax between two views, or the view before it.

OpenVINO's converter removes two reshapes around a softmax that undo each other, and asks for no other readers of them. These then
get the shape from before the first reshape: a sum over one row is one over another row, and no shape of a result says so.
"""

from __future__ import annotations

import torch
from torch.fx import GraphModule, Node

_aten = torch.ops.aten
_SOFTMAXES = frozenset({_aten._softmax.default, _aten._safe_softmax.default, _aten.softmax.int})
_VIEWS = frozenset(
    {
        _aten.view.default,
        _aten.reshape.default,
        _aten._unsafe_view.default,
        _aten.flatten.using_ints,
        _aten.unflatten.int,
        _aten.squeeze.dim,
        _aten.squeeze.dims,
        _aten.squeeze.default,
        _aten.unsqueeze.default,
    }
)


def separate_softmaxes(gm: GraphModule) -> GraphModule:
    """Copy softmaxes between two views, with the first view, where either is read by something else."""
    for node in list(gm.graph.nodes):
        before = node.args[0] if node.target in _SOFTMAXES else None
        if not isinstance(before, Node) or before.target not in _VIEWS:
            continue
        views = [user for user in node.users if user.target in _VIEWS]
        if views and (len(views) < len(node.users) or len(before.users) > 1):
            with gm.graph.inserting_after(node):
                own = gm.graph.node_copy(before)
            with gm.graph.inserting_after(own):
                copy = gm.graph.node_copy(node, lambda each, own=own, before=before: own if each is before else each)
            for view in views:
                view.replace_input_with(node, copy)
    gm.graph.eliminate_dead_code()
    return gm
