"""Operators that read memory by strides: OpenVINO's results are contiguous, where eager's may have other strides."""

from __future__ import annotations

import torch
from torch.fx import GraphModule, Node

from ov_backend.errors import ConversionError

_aten = torch.ops.aten


def restore_strides(outer: GraphModule) -> None:
    """Copy whatever ``as_strided`` reads of OpenVINO's results into memory as eager would have it.

    Args:
        outer: the split graph, with ``meta["val"]``; it is changed.

    Raises:
        ConversionError: eager's memory is shared between elements, as that of an expanded tensor.
    """
    for node in list(outer.graph.nodes):
        if node.target is _aten.as_strided.default and _is_computed(node.args[0]):
            with outer.graph.inserting_before(node):
                node.args = (_copied(outer, node.args[0]), *node.args[1:])


def _is_computed(node: Node) -> bool:
    """Whether a value comes from a submodule, however many operators lie between."""
    seen, waiting = {node}, [node]
    while waiting:
        each = waiting.pop()
        if each.op == "call_module":
            return True
        waiting += [source for source in each.all_input_nodes if source not in seen]
        seen.update(each.all_input_nodes)
    return False


def _copied(outer: GraphModule, node: Node) -> Node:
    value = node.meta["val"]
    order = sorted(range(value.dim()), key=lambda dim: (-value.stride(dim), -value.shape[dim]))
    if not value.permute(order).is_contiguous():
        raise ConversionError("as_strided reads a tensor whose elements share memory in eager, as OpenVINO's results do not")
    moved = outer.graph.call_function(_aten.permute.default, (node, order))
    whole = outer.graph.call_function(_aten.clone.default, (moved,), {"memory_format": torch.contiguous_format})
    return outer.graph.call_function(_aten.permute.default, (whole, [order.index(dim) for dim in range(value.dim())]))
