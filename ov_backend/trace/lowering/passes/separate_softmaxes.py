"""Have no one else read a softmax between two views, or the view before it.

OpenVINO's converter removes two reshapes around a softmax that undo each other, and asks for no other readers of them. These then
get the shape from before the first reshape: a sum over one row is one over another row, and no shape of a result says so.
"""

from __future__ import annotations

from torch.fx import GraphModule, Node

from ov_backend.trace.lowering.passes.remove_dead_code import remove_dead_code

#: By name: torch 2.1 does not have all of them.
_SOFTMAXES = frozenset({"aten._softmax", "aten._safe_softmax", "aten.softmax"})
_VIEWS = frozenset(f"aten.{name}" for name in ("view", "reshape", "_unsafe_view", "flatten", "unflatten", "squeeze", "unsqueeze"))


def separate_softmaxes(gm: GraphModule) -> GraphModule:
    """Copy softmaxes between two views, with the first view, where either is read by something else."""
    for node in list(gm.graph.nodes):
        before = node.args[0] if _packet(node) in _SOFTMAXES else None
        if not isinstance(before, Node) or _packet(before) not in _VIEWS:
            continue
        views = [user for user in node.users if _packet(user) in _VIEWS]
        if views and (len(views) < len(node.users) or len(before.users) > 1):
            with gm.graph.inserting_after(node):
                own = gm.graph.node_copy(before)
            with gm.graph.inserting_after(own):
                copy = gm.graph.node_copy(node, lambda each, own=own, before=before: own if each is before else each)
            for view in views:
                view.replace_input_with(node, copy)
    remove_dead_code(gm)
    return gm


def _packet(node: Node) -> str:
    return str(node.target).rpartition(".")[0]
