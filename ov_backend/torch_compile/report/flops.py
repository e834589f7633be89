"""Estimates from shapes: floating-point operations, and bytes read and written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.fx import Node

from ov_backend.core.settings import operator_name
from ov_backend.core.tensors import nested_tensors


def flops_of(node: Node) -> int:
    """Floating-point operations of one operator, from PyTorch's flop counter."""
    from torch.utils import flop_counter

    registry: Mapping[Any, Any] = getattr(flop_counter, "flop_registry", None) or flop_counter.flop_mapping
    rule = registry.get(getattr(node.target, "overloadpacket", None))
    if rule is None and operator_name(node.target) == "aten.scaled_dot_product_attention.default":
        query, key, value = (tuple(n.meta["val"].shape) for n in node.args[:3])
        rows = torch.Size(query[:-1]).numel()
        return 2 * rows * key[-2] * (query[-1] + value[-1])
    value = node.meta.get("val")
    if rule is None or value is None:
        return 0
    shapes = torch.fx.node.map_arg((node.args, node.kwargs), lambda n: _shape(n.meta.get("val")))
    keyword = "out_val" if hasattr(rule, "__wrapped__") else "out_shape"  # renamed in torch 2.2
    return int(rule(*shapes[0], **shapes[1], **{keyword: _shape(value)}))


def _shape(value: Any) -> Any:
    if isinstance(value, (tuple, list)):
        return tuple(_shape(item) for item in value)
    return value.shape if isinstance(value, torch.Tensor) else value


def traffic_of(node: Node) -> int:
    """Bytes that one operator reads and writes."""
    return byte_size(n.meta.get("val") for n in [node, *node.all_input_nodes])


def byte_size(values: Any) -> int:
    """Bytes of all tensors in nested tuples and lists."""
    return sum(t.numel() * t.element_size() for t in nested_tensors(list(values)))
