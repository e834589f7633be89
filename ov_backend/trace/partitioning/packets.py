"""Operators by their packets: ``torch.ops.aten.add`` stands for all overloads of ``add``."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

from ov_backend.core.fx_utils import argument as argument  # the other modules here take it from here


def aten_packets(*names: str) -> list[Any]:
    """The ATen packets of these names, without those that this version of torch does not have."""
    return [getattr(torch.ops.aten, name) for name in names if hasattr(torch.ops.aten, name)]


def packet_of(node: Node) -> Any:
    """The packet of a node's operator; of a plain function (``operator.getitem``) the function itself."""
    return getattr(node.target, "overloadpacket", node.target)


#: Names of operators that give the same numbers in another shape or place.
VIEWS = (
    *("view", "reshape", "_unsafe_view", "expand", "flatten", "permute", "transpose", "t", "squeeze", "unsqueeze", "slice"),
    *("select", "clone", "contiguous", "alias", "detach", "lift_fresh_copy", "repeat", "flip", "roll"),
)
#: And of those that choose and join them.
MOVES = (
    *(*VIEWS, "expand_copy", "view_copy", "diagonal", "unfold", "narrow", "index", "index_select", "gather", "embedding"),
    *("split", "split_with_sizes", "unbind", "cat", "stack", "constant_pad_nd", "select_scatter", "slice_scatter", "copy"),
    *("scatter", "tril", "triu"),
)
#: Of those that make numbers.
FILLED = (
    *("full", "full_like", "new_full", "fill", "scalar_tensor", "zeros", "zeros_like", "new_zeros", "ones", "ones_like"),
    "new_ones",
)
CONVERSIONS = frozenset(aten_packets("_to_copy", "to"))
