"""Write a view of one element as a scalar as ``squeeze``: the CPU device crashes where a product is reshaped to a scalar."""

from __future__ import annotations

import torch
from torch.fx import GraphModule, Node

_aten = torch.ops.aten
_VIEWS = frozenset({_aten.view.default, _aten.reshape.default, _aten._unsafe_view.default})


def squeeze_scalars(gm: GraphModule) -> GraphModule:
    """Replace views that have no dimensions, of tensors that have some, by ``squeeze``."""
    for node in gm.graph.nodes:
        if node.target in _VIEWS and not list(node.args[1]) and isinstance(node.args[0], Node):
            dims = list(range(node.args[0].meta["val"].dim()))
            if dims:
                node.target, node.args = _aten.squeeze.dims, (node.args[0], dims)
    return gm
