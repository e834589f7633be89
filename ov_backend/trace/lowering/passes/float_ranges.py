"""Write the numbers of a range of floats as floats: the converter computes in integers where the first ones are integers."""

from __future__ import annotations

import torch
from torch.fx import GraphModule

_aten = torch.ops.aten
_RANGES = frozenset({_aten.arange.default, _aten.arange.start, _aten.arange.start_step})


def float_ranges(gm: GraphModule) -> GraphModule:
    """Make floats of the integers among a range's start, end and step where its result has floats."""
    for node in gm.graph.nodes:
        if node.target in _RANGES and node.meta["val"].is_floating_point():
            node.args = tuple(float(number) if type(number) is int else number for number in node.args)
    return gm
