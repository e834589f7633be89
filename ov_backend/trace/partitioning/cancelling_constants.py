"""Numbers that are added and then taken back, as a program does to round.

Of ``(x + 12582912.0) - 12582912.0`` only the rounding of the sum is left. OpenVINO adds up the two constants first, and leaves
out the rounding with them. Such a sum stays in PyTorch.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

from ov_backend.trace.partitioning.packets import VIEWS, argument, aten_packets, packet_of

#: A sum of two constants that is smaller than this, compared with one of them, is what is left of their digits.
_CANCELLED = 1e-3
#: Constants from here on leave few digits of a number beside them, in float32 and in half precision; and how far back they are.
_LARGE, _LARGE_HALF, _STEPS = 2.0**16, 2.0**9, 8
#: Constants of more elements are tables.
_FEW = 64
_DIFFERENCES = frozenset(aten_packets("sub"))
_SUMS = _DIFFERENCES | frozenset(aten_packets("add"))
#: By operator of a sum, the weights of its two arguments, and whether its ``alpha`` multiplies them.
_WEIGHTS: dict[Any, tuple[tuple[float, bool], tuple[float, bool]]] = {
    **dict.fromkeys(aten_packets("add"), ((1.0, False), (1.0, True))),
    **dict.fromkeys(aten_packets("sub"), ((1.0, False), (-1.0, True))),
    **dict.fromkeys(aten_packets("rsub"), ((-1.0, True), (1.0, False))),
}
_NEGATIVES = frozenset(aten_packets("neg"))
_QUOTIENTS = frozenset(aten_packets("div"))
_PRODUCTS = _QUOTIENTS | frozenset(aten_packets("mul"))
_FILLED = frozenset(aten_packets("full", "full_like", "new_full", "scalar_tensor"))
#: By operator, the name of its argument that is added at last.
_BIASES = {**dict.fromkeys(aten_packets("addmm"), "self"), **dict.fromkeys(aten_packets("linear", "convolution"), "bias")}
_SAME_NUMBERS = frozenset(aten_packets(*VIEWS, "_to_copy"))


def takes_back(node: Node) -> bool:
    """A constant is added, and then one that cancels it: for PyTorch only the rounding in between is left of that.

    True of the sum that takes back, and of the one that is taken back: OpenVINO would add its constant to an earlier one first.
    """
    return _ends(node) or (_adds_much(node) and _is_taken_back(node, _STEPS))


def _ends(node: Node) -> bool:
    """A sum takes back what was added before."""
    added = _added(node)
    before = _added(node.args[0]) if added is not None else None
    if added is not None and before is not None and bool((added + before).abs().max() < _CANCELLED * added.abs().max()):
        return True
    step = _linear(node)
    return step is not None and node.meta["val"].dtype.is_floating_point and _cancels(step, node.meta["val"].dtype)


def _adds_much(node: Node) -> bool:
    """A sum adds a constant that leaves few digits of a number beside it."""
    if not isinstance(node.meta.get("val"), torch.Tensor) or not node.meta["val"].dtype.is_floating_point:
        return False
    added, step = _added(node), _linear(node)
    most = max(float(added.abs().max()) if added is not None else 0.0, abs(step[2]) if step is not None else 0.0)
    return most >= _large(node.meta["val"].dtype)


def _is_taken_back(node: Node, steps: int) -> bool:
    """Whether a sum that takes back follows, with so many linear operators at most in between."""
    return any(
        _ends(user) or (steps > 0 and _linear(user) is not None and _is_taken_back(user, steps - 1))
        for user in node.users
        if user.op == "call_function" and isinstance(user.meta.get("val"), torch.Tensor)
    )


def _large(dtype: torch.dtype) -> float:
    return _LARGE if dtype in (torch.float32, torch.float64) else _LARGE_HALF


def _cancels(step: tuple[Node, float, float], dtype: torch.dtype) -> bool:
    """Whether a linear step adds a constant that cancels a large one before it, or two large ones are rounded one by one.

    Any linear operators may lie between.
    """
    source, factor, added = step
    before, earlier, scale = 0.0, _linear(source), factor
    for _ in range(_STEPS):
        if earlier is None:
            break
        before, scale, earlier = before + scale * earlier[2], scale * earlier[1], _linear(earlier[0])
    large = _large(dtype) * abs(scale)
    cancelled = abs(before + added) < _CANCELLED * abs(added) and abs(added) >= large
    return cancelled or min(abs(before), abs(added)) >= max(large, _LARGE)


def _linear(node: Node) -> tuple[Node, float, float] | None:
    """The node of which a node computes a multiple plus a constant, with the factor and the constant; None of other nodes."""
    packet = packet_of(node)
    if packet in _SAME_NUMBERS:
        return node.args[0], 1.0, 0.0
    if packet in _NEGATIVES:
        return node.args[0], -1.0, 0.0
    if packet in _BIASES:
        bias = _constant(argument(node, _BIASES[packet]))
        return None if bias is None else (node.all_input_nodes[0], 1.0, bias)
    if packet not in _WEIGHTS and packet not in _PRODUCTS:
        return None
    first, second = (_constant(each) for each in node.args[:2])
    if (first is None) is (second is None):
        return None
    constant = first if second is None else second
    assert constant is not None
    other = node.args[1] if second is None else node.args[0]
    if packet in _WEIGHTS:
        alpha = float(argument(node, "alpha", 1))
        weights = [weight * alpha if scaled else weight for weight, scaled in _WEIGHTS[packet]]
        of_constant, of_other = weights if second is None else reversed(weights)
        return other, of_other, of_constant * constant
    if packet in _QUOTIENTS:
        return (other, 1 / constant, 0.0) if first is None and constant and argument(node, "rounding_mode") is None else None
    return other, constant, 0.0


def _constant(value: Any) -> float | None:
    """A number, or that of which all elements of a constant tensor are made; else None."""
    if not isinstance(value, Node):
        return float(value) if isinstance(value, (int, float)) else None
    if value.op == "get_attr":
        tensor = getattr(value.graph.owning_module, str(value.target), None)
        if not isinstance(tensor, torch.Tensor) or not 0 < tensor.numel() <= _FEW or tensor.is_complex():
            return None
        return float(tensor.max()) if bool(tensor.max() == tensor.min()) else None
    if packet_of(value) in _SAME_NUMBERS:
        return _constant(value.args[0])
    filled = argument(value, "fill_value", argument(value, "s")) if packet_of(value) in _FILLED else None
    return float(filled) if isinstance(filled, (int, float)) else None


def _added(node: Node) -> torch.Tensor | None:
    """The floating-point constant that a node adds to its first argument."""
    packet = packet_of(node)
    if packet not in _SUMS or not node.meta["val"].dtype.is_floating_point or not isinstance(node.args[0], Node):
        return None
    other, sign = node.args[1], -1.0 if packet in _DIFFERENCES else 1.0
    if isinstance(other, Node) and other.op == "get_attr":
        other = getattr(node.graph.owning_module, str(other.target), None)
    if not isinstance(other, (int, float)) and not (isinstance(other, torch.Tensor) and 0 < other.numel() <= _FEW):
        return None
    return torch.as_tensor(other, dtype=torch.float64) * (sign * float(argument(node, "alpha", 1)))
