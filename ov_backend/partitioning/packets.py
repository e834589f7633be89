"""Operators by their packets: ``torch.ops.aten.add`` stands for all overloads of ``add``."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node


def aten_packets(*names: str) -> list[Any]:
    """The ATen packets of these names, without those that this version of torch does not have."""
    return [getattr(torch.ops.aten, name) for name in names if hasattr(torch.ops.aten, name)]


def packet_of(node: Node) -> Any:
    """The packet of a node's operator; of a plain function (``operator.getitem``) the function itself."""
    return getattr(node.target, "overloadpacket", node.target)


def argument(node: Node, name: str, default: Any = None) -> Any:
    """An operator's argument, passed by position or by name; ``default`` if its schema has no argument of this name."""
    arguments = node.target._schema.arguments
    names = [argument.name for argument in arguments]
    if name not in names:
        return default
    position = names.index(name)
    return node.args[position] if position < len(node.args) else node.kwargs.get(name, arguments[position].default_value)
