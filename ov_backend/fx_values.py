"""What the nodes of a graph compute."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node


def used(node: Node) -> list[torch.Tensor]:
    """The tensors a node computes, of several only those that somebody reads."""
    value: Any = node.meta.get("val")
    if not isinstance(value, (tuple, list)):
        return [value] if isinstance(value, torch.Tensor) else []
    taken = {user.args[1] for user in node.users if getattr(user.target, "__name__", "") == "getitem" and user.users}
    everything = any(getattr(user.target, "__name__", "") != "getitem" for user in node.users)
    return [item for i, item in enumerate(value) if isinstance(item, torch.Tensor) and (everything or i in taken)]
