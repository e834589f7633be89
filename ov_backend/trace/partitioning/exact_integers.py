"""Operators on integers whose result would not be exact in OpenVINO; they stay in PyTorch.

OpenVINO's CPU device computes most operators on integers in float32, which holds whole numbers up to 2 ** 24; int8 and uint8 are
cut off at their limits where PyTorch wraps around, and int16 is kept in 32 bits between two operators.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.fx import GraphModule, Node

from ov_backend.core.fx_utils import operators, values_read
from ov_backend.core.settings import operator_name
from ov_backend.trace.partitioning import int64_range, known_wrong
from ov_backend.trace.partitioning.int64_range import is_integer
from ov_backend.trace.partitioning.packets import CONVERSIONS, FILLED, MOVES, aten_packets, packet_of

#: Whole numbers up to this are exact in float32.
_FLOAT32_WHOLE = 1 << 24

#: Operators that only move values, or convert them; they are exact for any integer.
_MOVES = CONVERSIONS | frozenset(aten_packets(*MOVES, *FILLED, "arange", "one_hot"))
#: Operators that are computed in 32 bits, and wrap around as PyTorch's do in int32.
_IN_32_BITS = frozenset(
    aten_packets("add", "sub", "rsub", "mul", "neg", "cumsum", "bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_not")
)
#: Operators that never leave the range of their integer arguments. A choice is computed along with the comparison before it.
_WITHIN = frozenset(
    aten_packets(
        *("maximum", "minimum", "amax", "amin", "max", "min", "relu", "clamp", "clamp_min", "clamp_max", "sort", "topk", "sign"),
        *("bitwise_and", "bitwise_or", "bitwise_xor", "cummax", "cummin", "remainder", "fmod", "median", "bitwise_right_shift"),
        *("__and__", "__or__", "__xor__", "__rshift__", "argmax", "argmin", "argsort", "where", "masked_fill", "index_put"),
    )
)
#: Operators that are computed in float32, and with them what follows at once.
_REDUCTIONS = frozenset(aten_packets("sum", "amax", "amin", "max", "min", "prod", "mean", "any", "all", "count_nonzero"))
_MAKES_NEGATIVE = frozenset(aten_packets("sub", "rsub", "neg"))
_QUOTIENTS = frozenset(aten_packets("floor_divide", "div", "divide"))
_REMAINDERS = frozenset(aten_packets("remainder", "fmod"))
_FILLS = frozenset(aten_packets("masked_fill", "constant_pad_nd", "index_fill", "fill", "scatter"))
def inexact(gm: GraphModule, wide: bool) -> dict[Node, str]:
    """The operators whose integer results would not be exact, with the reason. A quantization means to limit its result.

    ``wide``: int64 inputs may exceed :data:`int64_range.INPUT_BOUND`.
    """
    computing = [node for node in operators(gm) if operator_name(node.target) not in known_wrong.QUANTIZERS]
    nodes = [node for node in computing if any(is_integer(value) for value in _values(node))]
    if not nodes:
        return {}
    bounds = int64_range.bounds(gm, wide)
    reasons = {node: _reason(node, bounds) for node in nodes}
    return {node: why for node, why in reasons.items() if why}


def _reason(node: Node, bounds: int64_range.Bounds) -> str:
    packet = packet_of(node)
    results = list(values_read(node))
    if packet in _QUOTIENTS and all(is_integer(value) for value in results):
        return "divides integers, and OpenVINO rounds toward zero"
    largest = max((bounds[source] for source in node.all_input_nodes if _has_integer(source)), default=0.0)
    fills_integers = packet in _FILLS and all(is_integer(value) for value in results)
    if fills_integers and max(map(abs, _numbers(node.args)), default=0.0) > _FLOAT32_WHOLE:
        return "fills in a number that float32 does not hold"
    if packet in _REMAINDERS and max(largest, *map(abs, _numbers(node.args)), 0.0) > _FLOAT32_WHOLE:
        return "computes in float32, which does not hold such integers"
    if not any(value.dtype is torch.bool or is_integer(value) for value in results):
        return ""
    if results[0].is_floating_point():
        return ""
    if any(_leaves(node, value.dtype, bounds) for value in results if is_integer(value)):
        return f"may leave the range of {str(results[0].dtype).removeprefix('torch.')}, where OpenVINO does not wrap around"
    in_float32 = packet not in _IN_32_BITS or _follows_a_reduction(node)
    if packet not in _MOVES and in_float32 and max(largest, _result(node, bounds)) > _FLOAT32_WHOLE:
        return "computes in float32, which does not hold such integers"
    return ""


def _follows_a_reduction(node: Node) -> bool:
    """Whether OpenVINO may compute an operator together with a reduction before it, in the float32 of that one."""
    before, seen = [node], {node}
    while before:
        for source in before.pop().all_input_nodes:
            packet = packet_of(source)
            if packet in _REDUCTIONS:
                return True
            if source not in seen and (packet in _IN_32_BITS or packet in _MOVES) and _has_integer(source):
                seen.add(source)
                before.append(source)
    return False


def _leaves(node: Node, dtype: torch.dtype, bounds: int64_range.Bounds) -> bool:
    """Whether a result may need to wrap around."""
    packet, limit = packet_of(node), torch.iinfo(dtype).max
    if dtype is torch.int64:
        return False  # int64_range's business
    if packet in CONVERSIONS:
        source = node.all_input_nodes[0]
        unsigned = dtype is torch.uint8 and not _is_unsigned(source)
        return _has_integer(source) and (unsigned or bounds[source] > limit + 1)
    if packet in _MOVES or packet in _WITHIN:
        return False
    if dtype is torch.int32:
        return packet not in _IN_32_BITS and bounds[node] > limit
    negative = packet in _MAKES_NEGATIVE or any(number < 0 for number in _numbers(node.args))
    return bounds[node] > limit or (dtype is torch.uint8 and negative)


def _result(node: Node, bounds: int64_range.Bounds) -> float:
    """The bound of an integer result; that of a boolean one does not count."""
    return bounds[node] if _has_integer(node) and packet_of(node) not in _WITHIN else 0.0


def _numbers(argument: Any) -> Iterator[float]:
    if isinstance(argument, (int, float)):
        yield argument
    elif isinstance(argument, (tuple, list)):
        for item in argument:
            yield from _numbers(item)


def _values(node: Node) -> Iterator[torch.Tensor]:
    for source in (node, *node.all_input_nodes):
        yield from values_read(source)


def _has_integer(node: Node) -> bool:
    return any(is_integer(value) for value in values_read(node))


def _is_unsigned(node: Node) -> bool:
    return all(value.dtype in (torch.uint8, torch.bool) for value in values_read(node))
