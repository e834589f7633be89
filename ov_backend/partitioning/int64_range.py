"""How large the integers of a graph can become: OpenVINO's CPU device computes int64 as int32, and saturates.

For every node an upper bound of the absolute value is worked out from the bounds of its arguments. Where int64 could leave
the range of int32, the operator stays in PyTorch. Indices are safe: what they index is smaller than that.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch.fx import GraphModule, Node

from ov_backend.fx_utils import values_read

#: int64 inputs are taken to be no larger than this; whoever calls a graph makes sure of it, or says ``wide``.
INPUT_BOUND = 1 << 20
_INT32 = (1 << 31) - 1

#: Read int64 as positions only; out of range they are an error in PyTorch too.
_INDEXERS = frozenset(
    {"embedding", "gather", "index", "index_select", "index_put", "scatter", "scatter_add", "scatter_reduce", "index_add"}
    | {"index_copy", "index_fill", "_unsafe_index", "take", "take_along_dim", "nll_loss_forward", "nll_loss2d_forward"}
    | {"one_hot", "embedding_bag", "_embedding_bag", "max_pool2d_with_indices_backward"}
)

#: Hand positions on.
_RESHAPES = frozenset({"unsqueeze", "view", "reshape", "expand"})

Bounds = dict[Node, float]


def too_large(gm: GraphModule, wide: bool) -> dict[Node, str]:
    """The operators whose int64 values may not fit int32, with the reason.

    Args:
        gm: ATen graph with ``meta["val"]``.
        wide: int64 inputs may hold anything.
    """
    bounds = _bounds(gm, wide)
    why = "computes in int64 with values that may exceed int32, which OpenVINO would cut off"
    return {node: why for node in gm.graph.nodes if node.op == "call_function" and _unsafe(node, bounds)}


def largest(gm: GraphModule, wide: bool) -> list[float]:
    """The bound of every int64 value, in the graph's order."""
    return [bound for node, bound in _bounds(gm, wide).items() if _is_int64(node)]


def _bounds(gm: GraphModule, wide: bool) -> Bounds:
    bounds: Bounds = {}
    for node in gm.graph.nodes:
        bounds[node] = _bound(node, bounds, gm, wide)
    return bounds


def fits(value: Any) -> bool:
    """Whether a call's argument is within what graphs are made for."""
    if not isinstance(value, torch.Tensor) or value.dtype is not torch.int64 or not value.numel():
        return True
    low, high = torch.aminmax(value.detach())
    return int(low) >= -INPUT_BOUND and int(high) <= INPUT_BOUND


def _unsafe(node: Node, bounds: Mapping[Node, float]) -> bool:
    if _is_int64(node) and bounds[node] > _INT32 and not _only_indexes(node):
        return True
    if _name(node) in _INDEXERS or _only_indexes(node):
        return False
    return any(_is_int64(n) and bounds[n] > _INT32 for n in node.all_input_nodes)


def _only_indexes(node: Node) -> bool:
    """Whether an operator's values are read as positions and nothing else."""
    for user in node.users:
        indexed = _name(user) in ("index", "_unsafe_index") and node is not user.args[0]
        if not indexed and not (_name(user) in _RESHAPES and _only_indexes(user)):
            return False
    return bool(node.users)


def _is_int64(node: Node) -> bool:
    return any(value.dtype is torch.int64 for value in values_read(node))


def _name(node: Node) -> str:
    return str(node.target).removeprefix("aten.").partition(".")[0]


def _bound(node: Node, bounds: Mapping[Node, float], gm: GraphModule, wide: bool) -> float:
    if isinstance(node.meta.get("val"), (int, float)):  # a size, or what is computed of sizes
        return abs(float(node.meta["val"]))
    if node.op == "placeholder":
        return _input_bound(node.meta.get("val"), wide)
    if node.op == "get_attr":
        value = getattr(gm, str(node.target), None)
        return float(value.abs().max()) if isinstance(value, torch.Tensor) and value.numel() else math.inf
    if node.op != "call_function":
        return math.inf
    value = node.meta.get("val")
    if isinstance(value, torch.Tensor) and value.dtype is torch.bool:
        return 1.0
    rule = _RULES.get(_name(node))
    return math.inf if rule is None else rule(node, bounds)


def _input_bound(value: Any, wide: bool) -> float:
    if not isinstance(value, torch.Tensor) or value.is_floating_point() or value.is_complex():
        return math.inf
    if value.dtype is torch.bool:
        return 1.0
    if value.dtype is torch.int64:
        return math.inf if wide else INPUT_BOUND
    return float(torch.iinfo(value.dtype).max) + 1


def _of(value: Any, bounds: Mapping[Node, float]) -> Iterator[float]:
    """The bounds of every tensor and number in an argument."""
    if isinstance(value, Node):
        yield bounds[value]
    elif isinstance(value, (bool, int, float)):
        yield abs(float(value))
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from _of(item, bounds)


def _tensors(node: Node, bounds: Mapping[Node, float]) -> float:
    """The largest bound among the tensors that values are taken from."""
    return max((bounds[n] for n in node.all_input_nodes), default=0.0)


def _everything(node: Node, bounds: Mapping[Node, float]) -> float:
    return max(_of([*node.args, *node.kwargs.values()], bounds), default=0.0)


def _first(node: Node, bounds: Mapping[Node, float]) -> float:
    return next(_of(node.args[0], bounds), math.inf)


def _added(node: Node, bounds: Mapping[Node, float]) -> float:
    a, b = (max(_of(arg, bounds), default=math.inf) for arg in node.args[:2])
    return a + b * abs(float(node.kwargs.get("alpha", 1)))


def _multiplied(node: Node, bounds: Mapping[Node, float]) -> float:
    a, b = (max(_of(arg, bounds), default=math.inf) for arg in node.args[:2])
    return 0.0 if 0.0 in (a, b) else a * b


def _reduced(node: Node, bounds: Mapping[Node, float]) -> float:
    before, after = node.all_input_nodes[0].meta["val"].numel(), node.meta["val"].numel()
    return _first(node, bounds) * max(1.0, before / max(1, after))


def _accumulated(node: Node, bounds: Mapping[Node, float]) -> float:
    return _first(node, bounds) * max(1, node.meta["val"].numel())


def _counted(node: Node, bounds: Mapping[Node, float]) -> float:
    value = node.all_input_nodes[0].meta["val"]
    return float(value.numel())


def _chosen(node: Node, bounds: Mapping[Node, float]) -> float:
    """Values and the places where they were found."""
    value = node.all_input_nodes[0].meta["val"]
    return max(_first(node, bounds), float(value.numel())) if not value.is_floating_point() else float(value.numel())


def _one(node: Node, bounds: Mapping[Node, float]) -> float:
    return 1.0


def _divided(node: Node, bounds: Mapping[Node, float]) -> float:
    return _first(node, bounds) if all(b >= 1 for b in _of(node.args[1], bounds)) else math.inf


def _second(node: Node, bounds: Mapping[Node, float]) -> float:
    return max(_of(node.args[1], bounds), default=math.inf)


Rule = Callable[[Node, Mapping[Node, float]], float]

#: Results are among the values of the tensors that they are taken from.
_SELECTIONS = (
    *("view", "reshape", "_unsafe_view", "expand", "expand_as", "expand_copy", "view_copy", "flatten", "as_strided"),
    *("permute", "transpose", "t", "movedim", "squeeze", "unsqueeze", "diagonal", "unfold"),
    *("slice", "select", "narrow", "index", "index_select", "gather", "masked_select", "take_along_dim"),
    *("split", "split_with_sizes", "unsafe_split", "chunk", "unbind", "cat", "stack", "repeat", "flip", "roll"),
    *("clone", "contiguous", "copy", "alias", "detach", "lift_fresh_copy", "_to_copy", "to", "select_scatter", "slice_scatter"),
    *("tril", "triu", "amax", "amin", "maximum", "minimum", "abs", "neg", "sign", "bitwise_and", "logical_and"),
)
#: Results are among the values of all arguments, numbers included.
_MIXTURES = (
    *("full", "full_like", "new_full", "fill", "scalar_tensor", "arange", "where", "masked_fill"),
    *("clamp", "clamp_min", "clamp_max", "constant_pad_nd", "scatter", "index_put"),
)
#: Results are 0 or 1.
_ONES = ("zeros", "zeros_like", "new_zeros", "ones", "ones_like", "new_ones")
#: Results are positions or counts of elements.
_COUNTS = ("argmax", "argmin", "argsort", "nonzero", "count_nonzero")
#: Results are values, and the positions where they stand.
_CHOICES = (
    *("topk", "sort", "max", "min", "median", "kthvalue", "mode", "cummax", "cummin"),
    *("max_pool1d_with_indices", "max_pool2d_with_indices", "max_pool3d_with_indices"),
    *("adaptive_max_pool2d", "adaptive_max_pool3d", "fractional_max_pool2d"),
)

_RULES: dict[str, Rule] = {
    "<built-in function getitem>": _tensors,
    **dict.fromkeys(_SELECTIONS, _tensors),
    **dict.fromkeys(_MIXTURES, _everything),
    **dict.fromkeys(_ONES, _one),
    **dict.fromkeys(_COUNTS, _counted),
    **dict.fromkeys(_CHOICES, _chosen),
    **dict.fromkeys(("add", "sub", "rsub"), _added),
    **dict.fromkeys(("floor_divide", "div"), _divided),
    **dict.fromkeys(("remainder", "fmod"), _second),
    "mul": _multiplied,
    "sum": _reduced,
    "cumsum": _accumulated,
}
