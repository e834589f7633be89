"""Positions counted from the end, made positions from the start where several tensors index together.

OpenVINO's converter joins such tensors to one position in the flattened dimensions, as if none of them were negative: only the
first may be. https://docs.pytorch.org/docs/stable/generated/torch.Tensor.index_put_.html and NumPy's "advanced indexing" say what
the indices mean.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

from ov_backend.core.fx_utils import call

_aten = torch.ops.aten
_INDEXERS = (_aten.index.Tensor, _aten._unsafe_index.Tensor)


def count_from_start(node: Node) -> list[Node]:
    """Have a node that indexes with several tensors read positions from the start; the nodes that were added for that.

    Its graph is changed. Any other node stays as it is.
    """
    indices = list(node.args[1]) if node.target in _INDEXERS else []
    read = [index for index in indices if isinstance(index, Node)]
    if len(read) < 2 or any(index.meta["val"].dtype in (torch.bool, torch.uint8) for index in read):
        return []
    before = set(node.graph.nodes)
    with node.graph.inserting_before(node):
        node.args = (node.args[0], [_from_start(node, dim, index) for dim, index in enumerate(indices)], *node.args[2:])
    return [each for each in node.graph.nodes if each not in before]


def _from_start(node: Node, dim: int, index: Any) -> Any:
    if not isinstance(index, Node):
        return index
    indexed, positions = node.args[0], index.meta["val"]
    size = indexed.meta["val"].shape[dim]
    if not isinstance(size, int):  # symbolic
        length = call(node.graph, _aten.sym_size.int, (indexed, dim), size, name=f"{node.name}_size_{dim}")
    else:
        length = size
    negative = call(node.graph, _aten.lt.Scalar, (index, 0), positions.lt(0), name=f"{node.name}_negative_{dim}")
    shifted = call(node.graph, _aten.add.Tensor, (index, length), positions, name=f"{node.name}_shifted_{dim}")
    return call(node.graph, _aten.where.self, (negative, shifted, index), positions, name=f"{node.name}_position_{dim}")
