"""What Python computes from sizes and floats: numbers that a graph with symbolic sizes takes as inputs.

OpenVINO adds, subtracts and multiplies sizes as Python does. All else (powers, remainders, square roots, what is rounded) Python
computes at each call, exactly and for every operation that Python has.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch._subclasses import FakeTensorMode
from torch.fx import GraphModule, Node

from ov_backend.core.fx_utils import NUMBERS, placeholders

#: A number of a trace, by the text of its expression.
Numbers = dict[str, Any]

_aten = torch.ops.aten
#: What OpenVINO computes of sizes as Python does.
_EXACT = frozenset({operator.add, operator.sub, operator.mul, getattr(torch, "sym_sum", operator.add)})
_SIZES = ("aten.sym_size", "aten.sym_numel")


def take_as_inputs(gm: GraphModule, numbers: Numbers, lengths: int) -> None:
    """Make the numbers that OpenVINO does not compute as Python does the last inputs of a graph with symbolic sizes.

    They are added to ``numbers``, which are inputs already. The last ``lengths`` inputs mean nothing but their length, a number
    of the call.
    """
    given = placeholders(gm)
    sized, last = given[len(given) - lengths :], given[-1]
    found: dict[str, list[Node]] = {}
    for node in reversed(list(gm.graph.nodes)):
        value = node.meta.get("val")
        if isinstance(value, NUMBERS) and node.users and not _stays(node, sized):
            if all(isinstance(user.meta.get("val"), NUMBERS) and not _stays(user, sized) for user in node.users):
                continue
            name = f"{type(value).__name__} {value.node.expr}"
            numbers.setdefault(name, value)
            found.setdefault(name, []).append(node)
    for i, (name, value) in enumerate(numbers.items()):
        with gm.graph.inserting_after(last):
            last = gm.graph.placeholder(f"number_{i}")
        last.meta["val"] = _scalar(value, given[0])
        for node in found.get(name, []):
            node.replace_all_uses_with(last)
    for node in [*reversed(list(gm.graph.nodes))]:
        if (isinstance(node.meta.get("val"), NUMBERS) or node in sized) and not node.users:
            gm.graph.erase_node(node)


def _stays(node: Node, sized: list[Node]) -> bool:
    """Whether OpenVINO computes a number as Python does."""
    if str(node.target).startswith(_SIZES):
        return node.args[0] not in sized
    return node.target in _EXACT and isinstance(node.meta["val"], torch.SymInt)


def _scalar(value: Any, beside: Node) -> torch.Tensor:
    mode = getattr(beside.meta["val"], "fake_mode", None) or FakeTensorMode()
    with mode:
        return torch.empty((), dtype=dtype_of(value))


def dtype_of(value: Any) -> torch.dtype:
    """What a number is as a tensor."""
    if isinstance(value, torch.SymBool):
        return torch.bool
    return torch.float32 if isinstance(value, torch.SymFloat) else torch.int64
