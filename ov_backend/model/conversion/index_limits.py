"""Which positions a graph may be given: PyTorch raises for others, and OpenVINO answers with zeros, or reads other memory.

Where positions come from an input, the input is compared with the limits before a call; where the graph computes them, they
are compared afterwards; what no call can change is compared at once. A call beyond the limits is PyTorch's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_arg

from ov_backend.core.errors import PositionOutOfRange
from ov_backend.core.fx_utils import argument

_aten = torch.ops.aten
#: Operators along a dimension: which argument holds the positions, and which the dimension. Only one counts from the end.
_ALONG = {
    **dict.fromkeys(("gather", "scatter", "scatter_add", "scatter_reduce", "index_select", "index_add", "index_copy"), "dim"),
    "index_fill": "dim",
}
_LISTS = frozenset({"index", "_unsafe_index", "index_put", "_unsafe_index_put"})
#: Operators that hand on all values of their arguments. One that hands on some, such as ``select``, is looked at itself: what it
#: leaves out indexes nothing.
_KEEP = frozenset(
    {"view", "reshape", "_unsafe_view", "unsqueeze", "squeeze", "expand", "permute", "transpose", "t", "flip"}
    | {"clone", "detach", "alias", "_to_copy", "cat", "stack", "repeat", "roll"}
)
#: Constants with more elements are not computed here.
_LARGEST = 1 << 22


@dataclass(frozen=True)
class Limit:
    """The values that positions may have: from ``low`` to below ``high``, and ``other``."""

    low: int
    high: int
    other: int | None = None

    def allows(self, positions: torch.Tensor) -> bool:
        """Whether all positions are within the limit."""
        if not positions.numel():
            return True
        low, high = positions.aminmax()
        if self.low <= int(low) and int(high) < self.high:
            return True
        beyond = (positions < self.low) | (positions >= self.high)
        return self.other is not None and not bool((beyond & (positions != self.other)).any())


@dataclass(frozen=True)
class Limits:
    """The limits of a graph: of placeholders by their number, and of nodes that it computes."""

    of_placeholders: tuple[tuple[int, Limit], ...]
    computed: tuple[tuple[Node, Limit], ...]


def check_limits(limits: Iterable[tuple[str, int, Limit]], kind: str, tensors: Sequence[torch.Tensor]) -> None:
    """Compare tensors of one kind with their limits. Raises PositionOutOfRange if a position is beyond its limit."""
    for each, i, limit in limits:
        if each == kind and not limit.allows(tensors[i]):
            raise PositionOutOfRange(f"a position is out of range: it must be from {limit.low} to {limit.high - 1}")


def limits_of(gm: GraphModule) -> Limits:
    """The limits of all positions in a graph; those along a dimension of symbolic size are not known.

    Raises:
        PositionOutOfRange: one that no call can change is out of range.
    """
    numbers = {node: i for i, node in enumerate(n for n in gm.graph.nodes if n.op == "placeholder")}
    given: dict[tuple[int, Limit], None] = {}
    computed: dict[tuple[Node, Limit], None] = {}
    for node in gm.graph.nodes:
        if node.op == "get_attr":  # torch 2.1 notes no value
            node.meta.setdefault("val", getattr(gm, str(node.target)))
        for positions, limit in _read(node):
            for source in _sources(positions):
                if source.op == "placeholder":
                    given[numbers[source], limit] = None
                elif (constant := _constant(source, gm)) is not None:
                    check_limits([("", 0, limit)], "", [constant])
                else:
                    computed[source, limit] = None
    return Limits(tuple(given), tuple(computed))


def _read(node: Node) -> Iterator[tuple[Node, Limit]]:
    """The positions that an operator reads, each with its limit."""
    name = _name(node)
    if name == "embedding":
        yield from _limited(node.args[1], node.args[0], 0)
    elif name in _ALONG:
        yield from _limited(argument(node, "index"), node.args[0], argument(node, "dim"), wraps=name == "index_fill")
    elif name in _LISTS:
        for dim, positions in enumerate(node.args[1]):
            yield from _limited(positions, node.args[0], dim, wraps=True)
    elif name in ("nll_loss_forward", "nll_loss2d_forward"):
        classes = 1 if node.args[0].meta["val"].dim() > 1 else 0
        yield from _limited(node.args[1], node.args[0], classes, other=argument(node, "ignore_index"))
    elif name == "eq" and len(node.all_input_nodes) == 2 and _name(node.args[1]) == "arange" and _is_one_hot(node):
        yield from _limited(node.args[0], node.args[1], 0)


def _is_one_hot(node: Node) -> bool:
    """Whether a comparison with all numbers from 0 is ``torch.nn.functional.one_hot``, which asks for one of them to be equal."""
    start = argument(node.args[1], "start", 0), argument(node.args[1], "step", 1)
    return start == (0, 1) and all(user.meta["val"].dtype is torch.int64 for user in node.users if _name(user) == "_to_copy")


def _limited(
    positions: Any, indexed: Node, dim: int, wraps: bool = False, other: int | None = None
) -> Iterator[tuple[Node, Limit]]:
    shape = indexed.meta["val"].shape
    size = shape[dim] if shape else 1
    if not isinstance(positions, Node) or not isinstance(size, int):
        return
    dtype = positions.meta["val"].dtype
    if dtype not in (torch.bool, torch.uint8) and not dtype.is_floating_point:
        yield positions, Limit(-size if wraps else 0, size, other)


def _sources(node: Node) -> Iterable[Node]:
    """Where the values of a node come from."""
    seen, waiting = {node}, [node]
    while waiting:
        each = waiting.pop()
        integral = [source for source in each.all_input_nodes if _is_integral(source)]
        if each.op != "call_function" or not integral or _name(each) not in _KEEP:
            yield each
            continue
        waiting += [source for source in integral if source not in seen]
        seen.update(integral)


def _is_integral(node: Node) -> bool:
    value = node.meta.get("val")
    value = value[0] if isinstance(value, (tuple, list)) and value else value
    return isinstance(value, torch.Tensor) and not value.is_floating_point() and not value.is_complex()


def _name(node: Any) -> str:
    """The name of an ATen operator; "" for anything else."""
    target = getattr(node, "target", None)
    is_aten = isinstance(target, torch._ops.OpOverload) and target.namespace == "aten"
    return str(target).removeprefix("aten.").partition(".")[0] if is_aten else ""


def _constant(node: Node, gm: GraphModule) -> torch.Tensor | None:
    """The value of a node that depends on no placeholder; None for any other."""
    needed, waiting = {node}, [node]
    while waiting:
        each = waiting.pop()
        if each.op == "get_attr":
            continue
        if each.op != "call_function" or torch.Tag.nondeterministic_seeded in getattr(each.target, "tags", ()):
            return None
        value = each.meta.get("val")
        if isinstance(value, torch.Tensor) and (not isinstance(value.numel(), int) or value.numel() > _LARGEST):
            return None
        waiting += [source for source in each.all_input_nodes if source not in needed]
        needed.update(each.all_input_nodes)
    values: dict[Node, Any] = {}
    with torch.no_grad():
        for each in gm.graph.nodes:
            if each in needed:
                args, kwargs = map_arg((each.args, each.kwargs), values.__getitem__)
                values[each] = getattr(gm, str(each.target)) if each.op == "get_attr" else each.target(*args, **kwargs)
    result = values[node]
    return result if isinstance(result, torch.Tensor) else None


def extremes(graph: Graph, node: Node) -> Node:
    """The least and the largest value of a node, as a new node of its graph."""
    value = node.meta["val"]
    flat = _made(graph, _aten.view.default, (node, [-1]), value.new_empty((value.numel(),)))
    least = _made(graph, _aten.amin.default, (flat, [0], True), value.new_empty((1,)))
    largest = _made(graph, _aten.amax.default, (flat, [0], True), value.new_empty((1,)))
    return _made(graph, _aten.cat.default, ([least, largest],), value.new_empty((2,)))


def _made(graph: Graph, target: Any, args: tuple[Any, ...], value: torch.Tensor) -> Node:
    node = graph.call_function(target, args)
    node.meta["val"] = value
    return node
