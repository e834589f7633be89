"""A program: one captured graph as OpenVINO subgraphs and whatever stays in PyTorch between them.

Usually that is one subgraph and nothing else. A program holds no weights; :meth:`Program.compile` makes one that runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import GraphModule, Node

from ov_backend.partitioning import partitioner as partition
from ov_backend.runtime.compiled_graph import CompiledGraph, Kept, Timings, bind_and_compile
from ov_backend.conversion.converter import Graph, Unconverted
from ov_backend.errors import ConversionError, NothingToCompute
from ov_backend.lowering import lower
from ov_backend.lowering.decompositions import REWRITTEN
from ov_backend.lowering.decompose import known, take_apart
from ov_backend.partitioning.partitioner import Coverage
from ov_backend.settings import Settings

#: Each round names operators the converter refused; a graph that needs more rounds than this stays in PyTorch.
_MAX_ROUNDS = 16

#: Makes the graph of one partition: (gm, slots, inputs, is all of it) -> Graph. The graph store comes in between.
Converter = Callable[[GraphModule, Sequence[str], Sequence[str], bool], Graph]


@dataclass(frozen=True)
class Program:
    """What a captured graph became.

    Attributes:
        outer: the graph that calls the subgraphs, or None when one subgraph is everything.
        graphs: the subgraphs, by the name of the submodule they stand for.
        slots: names of the weights, in the order of the outer graph's placeholders.
        coverage: how much of it runs in OpenVINO.
    """

    outer: GraphModule | None
    graphs: Mapping[str, Graph]
    slots: tuple[str, ...]
    coverage: Coverage

    @property
    def whole(self) -> Graph | None:
        """The one graph that is all of the program, if it is so."""
        return next(iter(self.graphs.values())) if self.outer is None else None

    def compile(
        self, weights: Mapping[str, torch.Tensor], settings: Settings, kept: Callable[[str], Kept] | None = None
    ) -> CompiledProgram:
        """Bind live weights to every subgraph and compile them; ``kept(name)`` is where a subgraph's result may be found."""
        parts = {
            name: bind_and_compile(graph, weights, settings, None if kept is None else kept(name))
            for name, graph in self.graphs.items()
        }
        return CompiledProgram(self, parts, weights)


class CompiledProgram:
    """A program that runs: ``(inputs) -> flat outputs``, both lists of tensors."""

    def __init__(self, program: Program, parts: Mapping[str, CompiledGraph], weights: Mapping[str, torch.Tensor]) -> None:
        self.parts = dict(parts)
        self.coverage = program.coverage
        timings = [part.timings for part in parts.values()]
        self.timings = Timings(*(sum(getattr(t, name) for t in timings) for name in ("bind", "compile", "imported")))
        self._run = self._single(next(iter(parts.values()))) if program.outer is None else self._outer(program, weights)

    def __call__(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Run once; the results are the caller's."""
        return self._run(inputs)

    @staticmethod
    def _single(part: CompiledGraph) -> Callable[[Sequence[torch.Tensor]], list[torch.Tensor]]:
        return part.__call__

    def _outer(self, program: Program, weights: Mapping[str, torch.Tensor]) -> Callable[..., list[torch.Tensor]]:
        assert program.outer is not None
        gm = GraphModule(_with_calls(program, self.parts), program.outer.graph)
        live = [weights[name] for name in program.slots]

        def run(inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
            with torch.no_grad():
                return list(gm(*live, *inputs))

        return run


class _Subgraph(torch.nn.Module):
    """A compiled subgraph in the place of the submodule it was made from; weights among the arguments are dropped."""

    def __init__(self, part: CompiledGraph, keep: Sequence[int], single: bool) -> None:
        super().__init__()
        self._part, self._keep, self._single = part, tuple(keep), single

    def forward(self, *args: torch.Tensor) -> Any:
        results = self._part([args[i] for i in self._keep])
        return results[0] if self._single else tuple(results)


def _with_calls(program: Program, parts: Mapping[str, CompiledGraph]) -> dict[str, Any]:
    assert program.outer is not None
    slots = set(_slot_nodes(program.outer, program.slots))
    attributes: dict[str, Any] = {}
    for node in program.outer.graph.nodes:
        if node.op == "get_attr":
            attributes[node.target] = getattr(program.outer, node.target)
        if node.op == "call_module":
            original = program.outer.get_submodule(node.target)
            keep = [i for i, arg in enumerate(node.args) if arg not in slots]
            (output,) = (n for n in original.graph.nodes if n.op == "output")
            single = not isinstance(output.args[0], (list, tuple))
            attributes[node.target] = _Subgraph(parts[node.target], keep, single) if node.target in parts else original
    return attributes


def _slot_nodes(gm: GraphModule, slots: Sequence[str]) -> dict[Node, str]:
    placeholders = [node for node in gm.graph.nodes if node.op == "placeholder"]
    return dict(zip(placeholders, slots))


def build(gm: GraphModule, slots: Sequence[str], inputs: Sequence[str], settings: Settings, converter: Converter) -> Program:
    """Partition and convert a lowered graph.

    Args:
        gm: lowered ATen graph, placeholders: slots, then inputs.
        slots: names of the weights.
        inputs: names of the inputs.
        settings: which operators are disabled.
        converter: makes the graph of one partition.

    Raises:
        ConversionError: nothing of it can run in OpenVINO.
    """
    smallest = settings.min_block_size
    if len(partition.operators(gm)) < smallest:
        raise NothingToCompute(f"the graph is smaller than min_block_size ({smallest})")
    in_pytorch = partition.excluded(gm, settings)
    for _ in range(_MAX_ROUNDS):
        try:
            if not in_pytorch:
                return Program(None, {"": converter(gm, slots, inputs, True)}, tuple(slots), partition.coverage(gm, {}))
            return _build_split(gm, slots, in_pytorch, converter, smallest)
        except Unconverted as refused:
            nodes = {node: "OpenVINO has no conversion for it" for node in gm.graph.nodes if node.name in refused.nodes}
            if not set(nodes) - set(in_pytorch):
                raise
            smaller = take_apart(gm, {**known(node.target for node in nodes), **REWRITTEN})
            if smaller is gm:
                in_pytorch = {**in_pytorch, **nodes}
            else:
                gm = lower(smaller)
                in_pytorch = partition.excluded(gm, settings)
    raise ConversionError("too many of its operators have no conversion")


def _build_split(
    gm: GraphModule, slots: Sequence[str], in_pytorch: Mapping[Node, str], converter: Converter, smallest: float
) -> Program:
    outer, names, small = partition.split(_copy(gm), in_pytorch, smallest)
    why = f"in a block of fewer than {smallest} operators"
    in_pytorch = {**in_pytorch, **{node: why for node in gm.graph.nodes if node.name in small}}
    if not names and set(in_pytorch.values()) <= {partition.VIEW, why}:
        raise NothingToCompute("the graph only hands out views")
    if not names:
        listed = ", ".join(sorted({f"{node.target} ({why})" for node, why in in_pytorch.items()}))
        raise ConversionError(f"none of its operators can run in OpenVINO: {listed}")
    slot_names = _slot_nodes(outer, slots)
    graphs = {}
    for node in outer.graph.nodes:
        if node.op == "call_module" and node.target in names:
            graphs[node.target] = _convert_part(outer.get_submodule(node.target), node, slot_names, converter)
    return Program(outer, graphs, tuple(slots), partition.coverage(gm, in_pytorch))


def _copy(gm: GraphModule) -> GraphModule:
    """A copy whose nodes have the same names; splitting rewrites a graph in place."""
    graph = torch.fx.Graph()
    output = graph.graph_copy(gm.graph, {}, return_output_node=False)
    graph.output(output)
    graph.set_codegen(torch.fx.graph.CodeGen())
    copied = GraphModule(gm, graph)
    for old, new in zip(gm.graph.nodes, copied.graph.nodes):
        new.meta = dict(old.meta)
    return copied


def _convert_part(part: Any, call: Node, slot_names: Mapping[Node, str], converter: Converter) -> Graph:
    """Convert one submodule: arguments that are weights of the outer graph become its slots, first in order."""
    placeholders = [node for node in part.graph.nodes if node.op == "placeholder"]
    pairs = list(zip(placeholders, call.args))
    for inner, argument in pairs:
        inner.meta.setdefault("val", argument.meta.get("val"))
    slots = [(inner, slot_names[arg]) for inner, arg in pairs if arg in slot_names]
    inputs = [(inner, inner.name) for inner, arg in pairs if arg not in slot_names]
    graph = torch.fx.Graph()
    copies = {}
    for inner, _ in [*slots, *inputs]:
        copies[inner] = graph.placeholder(inner.name)
        copies[inner].meta = dict(inner.meta)
    for node in part.graph.nodes:
        if node.op not in ("placeholder", "output"):
            copies[node] = graph.node_copy(node, lambda n: copies[n])
            copies[node].meta = dict(node.meta)
    (output,) = (n for n in part.graph.nodes if n.op == "output")
    graph.output(torch.fx.node.map_arg(output.args[0], lambda n: copies[n]))
    return converter(GraphModule(part, graph), [name for _, name in slots], [name for _, name in inputs], False)

