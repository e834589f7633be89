"""Decisions that turn on the rounding of a half precision; they stay in PyTorch.

OpenVINO's CPU device computes float16 and bfloat16 in float32, and rounds only what it hands out. A whole number, an equality
or an overflow may depend on the rounding in between. So PyTorch decides, and computes what the decision reads as far as that is
a few operators element by element. Comparisons by size are left to OpenVINO: they tell neighbouring numbers apart, which no two
implementations agree on.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch.fx import GraphModule, Node

from ov_backend.core.fx_utils import is_getitem, operators
from ov_backend.trace.partitioning import known_wrong
from ov_backend.trace.partitioning.packets import CONVERSIONS, FILLED, MOVES, argument, aten_packets, packet_of

_HALVES = (torch.float16, torch.bfloat16)
#: How many operators before a decision are looked at.
_STEPS = 5
_WHY = "it decides by a number in a half precision, and OpenVINO leaves out the rounding to that before"
_TWICE = "it converts what was made float16 before, and OpenVINO leaves out both conversions"

#: Operators whose results are numbers that they read.
_MOVES = frozenset(
    aten_packets(
        *(*MOVES, *FILLED, "where", "masked_fill", "index_put", "abs", "neg", "relu", "maximum", "minimum", "amax", "amin"),
        *("clamp", "clamp_min", "clamp_max"),
    )
)
_SUMS = frozenset(aten_packets("add", "sub", "rsub"))
_DIFFERENCES = frozenset(aten_packets("sub"))
_PRODUCTS = frozenset(aten_packets("mul"))
_OTHERS = frozenset(aten_packets("div", "square", "pow", "sqrt", "reciprocal", "exp", "log"))
_ELEMENTWISE = _SUMS | _PRODUCTS | CONVERSIONS | _MOVES | _OTHERS
_EQUALITIES = frozenset(aten_packets("eq", "ne"))
_INFINITE = frozenset(aten_packets("isinf", "isposinf", "isneginf"))
_ROUNDS = frozenset(aten_packets("floor", "ceil", "trunc", "round", "frac", "heaviside", "remainder", "fmod", "floor_divide"))
_COMPARISONS = frozenset(aten_packets("lt", "le", "gt", "ge"))
_QUOTIENTS = frozenset(aten_packets("div"))
_ANY = frozenset(aten_packets("any"))
#: By the comparison with minus infinity, what is asked about a row of the results.
_ROWS = {
    **dict.fromkeys(aten_packets("eq"), frozenset(aten_packets("all"))),
    **dict.fromkeys(aten_packets("ne"), _ANY),
}
_CHOICES = frozenset(aten_packets("where", "neg"))
_LIMITS = frozenset(aten_packets("clamp", "clamp_min", "clamp_max"))


def undecided(gm: GraphModule) -> dict[Node, str]:
    """The decisions that turn on a rounding which OpenVINO leaves out, and what is computed for them, with the reason.

    And conversions back to float32 of inputs that were converted to float16: OpenVINO leaves out both.
    """
    kept: dict[Node, str] = {}
    for node in operators(gm):
        kept.update(dict.fromkeys(_there_and_back(node), _TWICE))
        read = [source for source in node.all_input_nodes if _leaves_out(source, _STEPS)] if _decides(node) else []
        if read and not _is_harmless(node, read):
            kept.update(dict.fromkeys([node, *(each for source in read for each in _chain(source, _STEPS))], _WHY))
    return kept


def _there_and_back(node: Node) -> list[Node]:
    """A conversion of an input that was converted to float16 before, and the moves between the two; nothing of other nodes.

    Inside of a network PyTorch would have to compute between two parts in OpenVINO.
    """
    if packet_of(node) not in CONVERSIONS or not _converts_floats(node):
        return []
    half, nodes = _moved(node.all_input_nodes[0])
    is_half = packet_of(half) in CONVERSIONS and _converts_floats(half) and half.meta["val"].dtype is torch.float16
    return [node, *nodes] if is_half and _moved(half.all_input_nodes[0])[0].op == "placeholder" else []


def _moved(node: Node) -> tuple[Node, list[Node]]:
    """The node whose numbers a node holds in another order, and the nodes that moved them."""
    moves = []
    while packet_of(node) in _MOVES and len(node.all_input_nodes) == 1:
        moves.append(node)
        node = node.all_input_nodes[0]
    return node, moves


def _decides(node: Node) -> bool:
    """Whether neighbouring numbers lead to results that are far from each other."""
    packet, value = packet_of(node), node.meta.get("val")
    if packet in CONVERSIONS:
        return isinstance(value, torch.Tensor) and not value.is_floating_point() and not value.is_complex()
    if packet in _QUOTIENTS:
        return argument(node, "rounding_mode") is not None
    if packet in _COMPARISONS:
        return known_wrong.reason(node) != ""
    if packet in _DIFFERENCES:  # of a number and what it is rounded to, only the rounding is left
        return len(node.all_input_nodes) == 2 and len(set(map(_unconverted, node.all_input_nodes))) == 1
    return packet in _EQUALITIES or packet in _INFINITE or packet in _ROUNDS


def _unconverted(node: Node) -> Node:
    while packet_of(node) in CONVERSIONS and node.all_input_nodes:
        node = node.all_input_nodes[0]
    return node


def _leaves_out(node: Node, steps: int) -> bool:
    """Whether the rounding of a half precision is left out of a number in OpenVINO."""
    value, packet, sources = node.meta.get("val"), packet_of(node), node.all_input_nodes
    if node.op != "call_function" or not isinstance(value, torch.Tensor) or not value.is_floating_point() or not steps:
        return False
    passes_on = packet in _MOVES or packet in CONVERSIONS or is_getitem(node) or _masks(node)
    if value.dtype in _HALVES and (not passes_on or _converts_floats(node)):
        return True
    return packet in _ELEMENTWISE and any(_leaves_out(source, steps - 1) for source in sources)


def _converts_floats(node: Node) -> bool:
    """Whether floats are converted to another precision."""
    source = node.all_input_nodes[0].meta.get("val") if packet_of(node) in CONVERSIONS else None
    return isinstance(source, torch.Tensor) and source.is_floating_point() and source.dtype is not node.meta["val"].dtype


def _masks(node: Node) -> bool:
    """Whether numbers are multiplied by booleans."""
    values = [source.meta.get("val") for source in node.all_input_nodes]
    return packet_of(node) in _PRODUCTS and any(isinstance(each, torch.Tensor) and each.dtype is torch.bool for each in values)


def _chain(node: Node, steps: int) -> Iterator[Node]:
    """The operators element by element that a number was computed with; a conversion to half precision ends it."""
    if not steps or packet_of(node) not in _ELEMENTWISE or not _leaves_out(node, steps):
        return
    if _converts_floats(node) and node.meta["val"].dtype in _HALVES:
        return
    yield node
    for source in node.all_input_nodes:
        yield from _chain(source, steps - 1)


def _is_harmless(node: Node, read: list[Node]) -> bool:
    """Whether a decision is one of those that networks make, on which the rounding has no bearing."""
    if packet_of(node) in _EQUALITIES and len({*node.args[:2]}) == 1:
        return True  # it looks for NaN
    if _number(node) == 0 and packet_of(read[0]) in _SUMS and not any(_leaves_out(n, _STEPS) for n in read[0].all_input_nodes):
        return True  # two numbers of a half precision are equal, or their difference is one too
    if packet_of(node) not in _INFINITE and not math.isinf(_number(node)):
        return False
    if all(source.meta["val"].dtype is torch.bfloat16 for source in read):
        return True  # its range is that of float32
    return _hides_rows(node) or _sets_a_limit(node)


def _number(node: Node) -> float:
    """The number that a node compares with; NaN if it does not compare with a number."""
    if packet_of(node) in CONVERSIONS:
        return 0.0 if node.meta["val"].dtype is torch.bool else math.nan
    other = node.args[1] if packet_of(node) in _EQUALITIES else None
    return float(other) if isinstance(other, (int, float)) else math.nan


def _hides_rows(node: Node) -> bool:
    """Whether it looks for rows of attention that are masked from end to end."""
    readers = _ROWS.get(packet_of(node), frozenset())
    return _number(node) == -math.inf and all(packet_of(user) in readers for user in node.users)


def _sets_a_limit(node: Node) -> bool:
    """Whether nothing but the limit of other numbers turns on it, as in transformers' T5."""
    anything = [user for user in node.users if packet_of(user) in _ANY]
    return len(anything) == len(node.users) and all(_is_limit(user) for each in anything for user in each.users)


def _is_limit(node: Node) -> bool:
    is_choice = packet_of(node) in _CHOICES and node.meta["val"].dim() == 0
    return is_choice and all(packet_of(user) in _LIMITS or _is_limit(user) for user in node.users)
