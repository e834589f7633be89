"""Compute group normalisation of bfloat16 in float32: the CPU device has no bfloat16 kernel for all shapes."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import GraphModule, Node

from ov_backend.core.fx_utils import call

_aten = torch.ops.aten


def widen_group_norm(gm: GraphModule) -> GraphModule:
    """Cast the inputs of every bfloat16 ``native_group_norm`` to float32, and its results back."""
    for node in list(gm.graph.nodes):
        if node.target is _aten.native_group_norm.default and _value(node)[0].dtype is torch.bfloat16:
            _widen(gm, node)
    return gm


def _value(node: Node) -> Any:
    return node.meta["val"]


def _widen(gm: GraphModule, node: Node) -> None:
    values = _value(node)
    tensors = [arg for arg in node.args[:3] if isinstance(arg, Node)]
    with gm.graph.inserting_before(node):
        wide = {tensor: _cast(gm, tensor, _value(tensor), torch.float32) for tensor in tensors}
    node.args = tuple(wide.get(arg, arg) if isinstance(arg, Node) else arg for arg in node.args)
    node.meta["val"] = tuple(value.to(torch.float32) for value in values)
    for user in list(node.users):
        user.meta["val"] = node.meta["val"][user.args[1]]
        with gm.graph.inserting_after(user):
            narrow = _cast(gm, user, user.meta["val"], torch.bfloat16)
        user.replace_all_uses_with(narrow, delete_user_cb=lambda n, cast=narrow: n is not cast)


def _cast(gm: GraphModule, source: Node, value: torch.Tensor, dtype: torch.dtype) -> Node:
    return call(gm.graph, _aten._to_copy.default, (source,), value.to(dtype), dtype=dtype)
