"""Join only what has elements: caches of keys and values begin with an empty tensor, which OpenVINO does not compute with."""

from __future__ import annotations

import torch
from torch.fx import GraphModule, Node

_aten = torch.ops.aten


def drop_empty_operands(gm: GraphModule) -> GraphModule:
    """Leave operands without elements out of every ``cat`` whose result has elements, unless they decide its dtype."""
    for node in gm.graph.nodes:
        if node.target is _aten.cat.default and not _is_empty(node):
            filled = [each for each in node.args[0] if not _is_empty(each)]
            dtypes = [each.meta["val"].dtype for each in filled if "val" in each.meta]  # torch 2.1 notes no values of constants
            if node.meta["val"].dtype in dtypes:
                node.args = (filled, *node.args[1:])
    return gm


def _is_empty(node: Node) -> bool:
    """Whether a tensor has no elements whatever its dynamic sizes are."""
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and any(isinstance(size, int) and size == 0 for size in value.shape)
