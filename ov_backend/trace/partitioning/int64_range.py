"""How large the integers of a graph can become: OpenVINO's CPU device computes int64 as int32, and saturates.

Each node gets an upper bound of its absolute values, computed from the bounds of its arguments. An operator whose int64 values
may not fit int32 stays in PyTorch. Indices always fit: no dimension has as many elements.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch.fx import GraphModule, Node

from ov_backend.core.fx_utils import values_read
from ov_backend.trace.partitioning.packets import CONVERSIONS, aten_packets, packet_of

#: The assumed largest absolute value of int64 inputs. A caller checks its inputs with :func:`fits`, or says ``wide``.
INPUT_BOUND = 1 << 20
_INT32_MAX = (1 << 31) - 1

#: Operators that read int64 arguments as positions only; a position out of range is an error in PyTorch too.
_INDEXERS = frozenset(
    aten_packets(
        *("embedding", "gather", "index", "index_select", "index_put", "scatter", "scatter_add", "scatter_reduce", "index_add"),
        *("index_copy", "index_fill", "_unsafe_index", "take", "take_along_dim", "nll_loss_forward", "nll_loss2d_forward"),
        *("one_hot", "embedding_bag", "_embedding_bag", "max_pool2d_with_indices_backward"),
    )
)
#: Those of them whose positions come in a list, after the indexed tensor.
_INDEXED_BY_LIST = frozenset(aten_packets("index", "_unsafe_index"))
#: Operators that pass positions on unchanged.
_RESHAPES = frozenset(aten_packets("unsqueeze", "view", "reshape", "expand"))

_NARROW = (torch.uint8, torch.int8, torch.int16, torch.int32)

Bounds = dict[Node, float]


def too_large(gm: GraphModule, wide: bool) -> dict[Node, str]:
    """The operators whose int64 values may not fit int32, with the reason; ``wide`` inputs may exceed :data:`INPUT_BOUND`."""
    limits = bounds(gm, wide)
    why = "computes in int64 with values that may exceed int32, which OpenVINO would cut off"
    return {node: why for node in gm.graph.nodes if node.op == "call_function" and _may_overflow(node, limits)}


def largest(gm: GraphModule, wide: bool) -> list[float]:
    """The bound of every integer tensor, in the graph's order."""
    return [bound for node, bound in bounds(gm, wide).items() if any(map(is_integer, values_read(node)))]


def fits(value: Any) -> bool:
    """Whether an argument of a call is no int64 tensor, or one within :data:`INPUT_BOUND`."""
    if not isinstance(value, torch.Tensor) or value.dtype is not torch.int64 or not value.numel():
        return True
    low, high = torch.aminmax(value.detach())
    return int(low) >= -INPUT_BOUND and int(high) <= INPUT_BOUND


def bounds(gm: GraphModule, wide: bool) -> Bounds:
    """The bound of every node's absolute values, in the graph's order; infinity where none is known."""
    known: Bounds = {}
    for node in gm.graph.nodes:
        known[node] = _bound(node, known, gm, wide)
    return known


def _may_overflow(node: Node, bounds: Mapping[Node, float]) -> bool:
    if _is_int64(node) and bounds[node] > _INT32_MAX and not _only_indexes(node):
        return True
    if packet_of(node) in _INDEXERS or _only_indexes(node):
        return False
    return any(_is_int64(n) and bounds[n] > _INT32_MAX for n in node.all_input_nodes)


def _only_indexes(node: Node) -> bool:
    """Whether other operators read a node's values as positions and nothing else."""
    for user in node.users:
        is_index = packet_of(user) in _INDEXED_BY_LIST and node is not user.args[0]
        if not is_index and not (packet_of(user) in _RESHAPES and _only_indexes(user)):
            return False
    return bool(node.users)


def is_integer(value: torch.Tensor) -> bool:
    """Whether a tensor holds integers, and no booleans."""
    return not (value.is_floating_point() or value.is_complex() or value.dtype is torch.bool)


def _is_int64(node: Node) -> bool:
    return any(value.dtype is torch.int64 for value in values_read(node))


def _bound(node: Node, bounds: Mapping[Node, float], gm: GraphModule, wide: bool) -> float:
    value = node.meta.get("val")
    if isinstance(value, (int, float)):  # a size, or a number computed from sizes
        return abs(float(value))
    if node.op == "placeholder":
        return _input_bound(value, wide)
    if node.op == "get_attr":
        return _constant_bound(getattr(gm, str(node.target), None))
    if node.op != "call_function":
        return math.inf
    if isinstance(value, torch.Tensor) and value.dtype is torch.bool:
        return 1.0
    if _made_of_floats(node):
        return float(torch.iinfo(value.dtype).max) + 1
    rule = _RULES.get(packet_of(node))
    bound = math.inf if rule is None else rule(node, bounds)
    if isinstance(value, torch.Tensor) and value.dtype is torch.uint8:  # -2 is 254
        return max(bound, float(torch.iinfo(torch.uint8).max))
    return bound


def _made_of_floats(node: Node) -> bool:
    """Whether floats are converted to integers of less than 64 bits, whose range is all that is known of these."""
    result, source = node.meta.get("val"), node.all_input_nodes[0].meta.get("val") if node.all_input_nodes else None
    if packet_of(node) not in CONVERSIONS or not isinstance(result, torch.Tensor) or not isinstance(source, torch.Tensor):
        return False
    return result.dtype in _NARROW and source.is_floating_point()


def _input_bound(value: Any, wide: bool) -> float:
    if not isinstance(value, torch.Tensor) or value.is_floating_point() or value.is_complex():
        return math.inf
    if value.dtype is torch.bool:
        return 1.0
    if value.dtype is torch.int64:
        return math.inf if wide else INPUT_BOUND
    return float(torch.iinfo(value.dtype).max) + 1


def _constant_bound(value: Any) -> float:
    if not isinstance(value, torch.Tensor) or not value.numel() or value.is_complex():
        return math.inf
    return float(value.to(torch.float64).abs().max())  # the absolute value of the smallest int64 is no int64


def _bounds_in(argument: Any, bounds: Mapping[Node, float]) -> Iterator[float]:
    """The bounds of every tensor and number in an argument."""
    if isinstance(argument, Node):
        yield bounds[argument]
    elif isinstance(argument, (bool, int, float)):
        yield abs(float(argument))
    elif isinstance(argument, (tuple, list)):
        for item in argument:
            yield from _bounds_in(item, bounds)


def _largest_tensor(node: Node, bounds: Mapping[Node, float]) -> float:
    return max((bounds[n] for n in node.all_input_nodes), default=0.0)


def _largest_argument(node: Node, bounds: Mapping[Node, float]) -> float:
    return max(_bounds_in([*node.args, *node.kwargs.values()], bounds), default=0.0)


def _first_argument(node: Node, bounds: Mapping[Node, float]) -> float:
    return next(_bounds_in(node.args[0], bounds), math.inf)


def _second_argument(node: Node, bounds: Mapping[Node, float]) -> float:
    return max(_bounds_in(node.args[1], bounds), default=math.inf)


def _sum_of_two(node: Node, bounds: Mapping[Node, float]) -> float:
    a, b = (max(_bounds_in(arg, bounds), default=math.inf) for arg in node.args[:2])
    return a + b * abs(float(node.kwargs.get("alpha", 1)))


def _product(node: Node, bounds: Mapping[Node, float]) -> float:
    a, b = (max(_bounds_in(arg, bounds), default=math.inf) for arg in node.args[:2])
    return 0.0 if 0.0 in (a, b) else a * b


def _common_bits(node: Node, bounds: Mapping[Node, float]) -> float:
    """A mask that is not negative limits the result; of two negative numbers it may be less than either."""
    masks = [float(mask) for mask in node.args[:2] if isinstance(mask, int) and mask >= 0]
    largest = _largest_argument(node, bounds)
    return masks[0] if masks else largest if math.isinf(largest) else 2.0 ** math.ceil(math.log2(max(1.0, largest)))


def _quotient(node: Node, bounds: Mapping[Node, float]) -> float:
    return _first_argument(node, bounds) if all(b >= 1 for b in _bounds_in(node.args[1], bounds)) else math.inf


def _sum_of_elements(node: Node, bounds: Mapping[Node, float]) -> float:
    before, after = node.all_input_nodes[0].meta["val"].numel(), node.meta["val"].numel()
    return _first_argument(node, bounds) * max(1.0, before / max(1, after))


def _running_sum(node: Node, bounds: Mapping[Node, float]) -> float:
    return _first_argument(node, bounds) * max(1, node.meta["val"].numel())


def _element_count(node: Node, bounds: Mapping[Node, float]) -> float:
    return float(node.all_input_nodes[0].meta["val"].numel())


def _values_and_positions(node: Node, bounds: Mapping[Node, float]) -> float:
    count = _element_count(node, bounds)
    return count if node.all_input_nodes[0].meta["val"].is_floating_point() else max(_first_argument(node, bounds), count)


Rule = Callable[[Node, Mapping[Node, float]], float]

#: The result holds values of the tensors that the operator reads.
_SELECTIONS = (
    *("view", "reshape", "_unsafe_view", "expand", "expand_as", "expand_copy", "view_copy", "flatten", "as_strided"),
    *("permute", "transpose", "t", "movedim", "squeeze", "unsqueeze", "diagonal", "unfold"),
    *("slice", "select", "narrow", "index", "index_select", "gather", "masked_select", "take_along_dim"),
    *("split", "split_with_sizes", "unsafe_split", "chunk", "unbind", "cat", "stack", "repeat", "flip", "roll"),
    *("clone", "contiguous", "copy", "alias", "detach", "lift_fresh_copy", "_to_copy", "to", "select_scatter", "slice_scatter"),
    *("tril", "triu", "amax", "amin", "maximum", "minimum", "abs", "neg", "sign", "logical_and"),
)
#: The result holds values of any argument, numbers included.
_MIXTURES = (
    *("full", "full_like", "new_full", "fill", "scalar_tensor", "arange", "where", "masked_fill"),
    *("clamp", "clamp_min", "clamp_max", "constant_pad_nd", "scatter", "index_put"),
)
_CONSTANTS = ("zeros", "zeros_like", "new_zeros", "ones", "ones_like", "new_ones")
#: The result holds positions of elements, or their count.
_POSITIONS = ("argmax", "argmin", "argsort", "nonzero", "count_nonzero")
#: One result holds values of the tensor, another their positions.
_SEARCHES = (
    *("topk", "sort", "max", "min", "median", "kthvalue", "mode", "cummax", "cummin"),
    *("max_pool1d_with_indices", "max_pool2d_with_indices", "max_pool3d_with_indices"),
    *("adaptive_max_pool2d", "adaptive_max_pool3d", "fractional_max_pool2d"),
)

#: By operator packet: how the bound of a result follows from those of its arguments. Other results have no bound.
_RULES: dict[Any, Rule] = {
    operator.getitem: _largest_tensor,
    **dict.fromkeys(aten_packets(*_SELECTIONS), _largest_tensor),
    **dict.fromkeys(aten_packets(*_MIXTURES), _largest_argument),
    **dict.fromkeys(aten_packets(*_CONSTANTS), lambda node, bounds: 1.0),
    **dict.fromkeys(aten_packets(*_POSITIONS), _element_count),
    **dict.fromkeys(aten_packets(*_SEARCHES), _values_and_positions),
    **dict.fromkeys(aten_packets("add", "sub", "rsub"), _sum_of_two),
    **dict.fromkeys(aten_packets("mul"), _product),
    **dict.fromkeys(aten_packets("bitwise_and"), _common_bits),
    **dict.fromkeys(aten_packets("floor_divide", "div"), _quotient),
    **dict.fromkeys(aten_packets("remainder", "fmod"), _second_argument),
    **dict.fromkeys(aten_packets("sum"), _sum_of_elements),
    **dict.fromkeys(aten_packets("cumsum"), _running_sum),
}
