"""Operators that read memory beyond the elements of a tensor: what OpenVINO computes has memory for these alone."""

from __future__ import annotations

import torch
from torch.fx import GraphModule, Node

from ov_backend.core.errors import ConversionError
from ov_backend.core.tensors import strides_like

_aten = torch.ops.aten


def check_memory(outer: GraphModule) -> None:
    """Look at whatever ``as_strided`` reads of OpenVINO's results, which have the strides of eager.

    Raises:
        ConversionError: in eager it is a part of larger memory, or its elements share memory.
    """
    for node in outer.graph.nodes:
        if node.target is _aten.as_strided.default:
            computed = _computed(node.args[0])
            if computed is not None and not _fills_its_memory(computed.meta["val"]):
                raise ConversionError("as_strided reads a tensor whose elements share memory in eager, or lie apart in it")


def _computed(node: Node) -> Node | None:
    """The result of a submodule whose memory a node reads, however many views lie between; None for PyTorch's own memory."""
    while node.op == "call_function" and node.all_input_nodes:
        source = node.all_input_nodes[0]
        if source.op == "call_module":
            return node
        if _memory(source) != _memory(node):
            return None
        node = source
    return node if node.op == "call_module" else None


def _memory(node: Node) -> int:
    value = node.meta.get("val")
    return int(value.untyped_storage()._cdata) if isinstance(value, torch.Tensor) else 0


def _fills_its_memory(value: torch.Tensor) -> bool:
    return value.storage_offset() == 0 and value.stride() == strides_like(value.shape, value.stride())
