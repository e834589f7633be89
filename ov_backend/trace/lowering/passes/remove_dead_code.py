"""Remove what nobody reads, before any other stage looks at it.

PyTorch's composite operators leave such nodes behind: batch normalisation in evaluation mode makes an empty tensor of bytes.
"""

from __future__ import annotations

import torch
from torch.fx import GraphModule, Node

from ov_backend.trace.lowering.functionalize import mutates


def remove_dead_code(gm: GraphModule) -> GraphModule:
    """Erase every node whose values nobody reads, but for those that are called for their effect."""
    for node in reversed(list(gm.graph.nodes)):
        if not node.users and not _has_effect(node):
            gm.graph.erase_node(node)
    return gm


def _has_effect(node: Node) -> bool:
    """Whether a node writes, draws random numbers (also in torch 2.1), asserts something, or is an input or the output."""
    target = node.target
    schema = getattr(target, "_schema", None)
    returns_nothing = schema is not None and not schema.returns
    draws = torch.Tag.nondeterministic_seeded in getattr(target, "tags", ())
    return node.is_impure() or mutates(node) or draws or returns_nothing or "assert" in str(target)
