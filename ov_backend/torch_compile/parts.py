"""A Dynamo graph in parts: what cannot be traced runs as in eager, and what lies between are graphs of their own.

A graph is cut at a higher-order operator, at an operator of the program that writes to its arguments, at an assertion, and
wherever a trace fails. Each part takes and returns the very tensors, so that views, writes and gradients cross a cut as they
cross a graph break.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Interpreter, Node
from torch.fx.node import map_arg
from torch.utils._pytree import tree_map

from ov_backend.core.errors import CaptureError, first_line, pass_on_signals
from ov_backend.core.fx_utils import is_getitem, output_node, placeholders
from ov_backend.torch_compile.graph import DynamoGraph, example_of
from ov_backend.torch_compile.side_effects import observed

#: Makes of a part, and its number, what answers its calls.
Make = Callable[[GraphModule, int], Callable[..., Any]]


def untraceable(graph: DynamoGraph, full: Sequence[Any], gradients: bool) -> dict[Node, str]:
    """The nodes of a graph that cannot be traced, each with the reason; maybe not all: the parts are asked again.

    Nothing is computed of one call's inputs, ``full``, or written to them. ``gradients``: PyTorch records operations.
    """
    finder = _Finder(graph.gm)
    try:
        with observed(full, gradients) as (fakes, _):
            graph.interpreted(finder, fakes)
    except Exception as error:  # of the inputs, or after a node whose result is not known before a call
        pass_on_signals(error)
    return finder.found


class _Finder(Interpreter):
    """Runs a graph over fake tensors, and goes on behind a node that fails."""

    def __init__(self, gm: GraphModule) -> None:
        super().__init__(gm)
        self.found: dict[Node, str] = {}

    def run_node(self, n: Node) -> Any:
        try:
            return super().run_node(n)
        except Exception as error:  # a graph's operators may raise anything on fake tensors
            pass_on_signals(error)
            if not n.op.startswith("call_"):
                raise
            own = isinstance(error, CaptureError)
            self.found[n] = str(error) if own else f"{_name(n)} cannot be traced: {type(error).__name__}: {first_line(error)}"
            return tree_map(_same_but_fake, example_of(n))


def _same_but_fake(value: Any) -> Any:
    """A tensor of the trace for one of Dynamo's, with the sizes that this has."""
    if isinstance(value, torch.Tensor):
        return torch.empty_strided(tuple(map(int, value.shape)), value.stride(), dtype=value.dtype)
    return value


@dataclass(frozen=True)
class _Step:
    """One part, or the nodes between two; ``last`` are the nodes whose values are not needed after it."""

    call: Callable[..., Any]
    inputs: Sequence[Node]
    outputs: Sequence[Node]
    last: Sequence[Node]


class Parts:
    """A graph that is cut at the nodes ``apart``, which run as in eager, each with the reason.

    ``make`` makes of a part, and its number, what answers its calls.

    Raises:
        CaptureError: there is nothing beside these nodes.
    """

    def __init__(self, graph: DynamoGraph, apart: Mapping[Node, str], make: Make) -> None:
        gm = graph.gm
        self._output, self._placeholders = output_node(gm).args[0], placeholders(gm)
        self._skipped = len(graph.attributes)
        self._attributes = {n: getattr(gm, str(n.target)) for n in output_node(gm).all_input_nodes if n.op == "get_attr"}
        #: The operators that run as in eager.
        self.operators = [_name(node) for node in apart]
        self.reason = "; ".join(sorted(set(apart.values())))
        nodes = [node for node in gm.graph.nodes if node.op.startswith("call_")]
        runs = [(key, list(run)) for key, run in itertools.groupby(nodes, _outside(nodes, apart).__contains__)]
        if all(is_outside for is_outside, _ in runs):
            raise CaptureError(self.reason)
        cuts, numbers = [_cut(gm, run) for _, run in runs], itertools.count(1)
        self._steps = [
            _Step(piece if is_outside else make(piece, next(numbers)), inputs, outputs, last)
            for (is_outside, _), (piece, inputs, outputs), last in zip(runs, cuts, _last_uses([cut[1:] for cut in cuts], gm))
        ]

    def __call__(self, full: Sequence[Any]) -> Any:
        """Run on all inputs of the graph."""
        values: dict[Node, Any] = {**self._attributes, **dict(zip(self._placeholders, full[self._skipped :]))}
        for step in self._steps:
            values.update(zip(step.outputs, step.call(*(values[node] for node in step.inputs))))
            for node in step.last:
                del values[node]
        return tuple(map_arg(self._output, values.__getitem__))


def _name(node: Node) -> str:
    """The name of what a node calls."""
    if isinstance(node.target, (str, torch._ops.OperatorBase, torch._ops.OpOverloadPacket)):
        return str(node.target)
    return getattr(node.target, "__name__", type(node.target).__name__)


def _outside(nodes: Sequence[Node], apart: Iterable[Node]) -> set[Node]:
    """The nodes that run as in eager: ``apart``, what selects one of their results, and what sets a state and has no value.

    The region of a transform of ``torch.func`` is not cut: its values are tensors of another kind.
    """
    outside, region, depth = set(apart), list[Node](), 0
    for node in nodes:
        depth += _name(node).endswith("_increment_nesting")
        if depth:
            region.append(node)
        elif (node.op == "call_function" and example_of(node) is None) or (is_getitem(node) and node.args[0] in outside):
            outside.add(node)
        depth -= _name(node).endswith("_decrement_nesting")
        if not depth:
            outside.update(() if outside.isdisjoint(region) else region)
            region.clear()
    return outside


def _cut(gm: GraphModule, nodes: Sequence[Node]) -> tuple[GraphModule, list[Node], list[Node]]:
    """Consecutive nodes as a graph of their own; its inputs and outputs as nodes of the whole graph."""
    own, graph, copies = set(nodes), Graph(), dict[Node, Node]()
    sources = list(dict.fromkeys(source for node in nodes for source in node.all_input_nodes if source not in own))
    inputs = [source for source in sources if source.op != "get_attr"]
    outputs = [node for node in nodes if not own.issuperset(node.users)]
    for source in inputs:
        copies[source] = graph.placeholder(source.name)
        copies[source].meta = dict(source.meta)
    for node in [*(source for source in sources if source.op == "get_attr"), *nodes]:
        copies[node] = graph.node_copy(node, lambda each: copies[each])
    graph.output(tuple(copies[node] for node in outputs))
    return GraphModule(gm, graph), inputs, outputs


def _last_uses(steps: Sequence[tuple[list[Node], list[Node]]], gm: GraphModule) -> Iterator[list[Node]]:
    """For every step, by its inputs and outputs, the nodes whose values are not needed after it."""
    needed = set(output_node(gm).all_input_nodes)
    found = []
    for inputs, outputs in reversed(steps):
        found.append([node for node in dict.fromkeys([*inputs, *outputs]) if node not in needed])
        needed.update(inputs)
    return reversed(found)

