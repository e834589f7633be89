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
