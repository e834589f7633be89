"""What of a model runs in OpenVINO: coverage, operators that do not and where they come from, FLOPs and bytes.

:func:`explain` runs a model once through Dynamo; :func:`of_module` traces a whole module, as the engine does. Either way
every partition is really converted, so that the figures are what a run would find; nothing is compiled.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch.fx import GraphModule, Interpreter, Node

from ov_backend.capture import trace as capture
from ov_backend.conversion import converter as convert
from ov_backend import compiler as graphs
from ov_backend.dynamo import side_effects as hazards
from ov_backend.partitioning import partitioner as partition
from ov_backend.report import svg as report_svg
from ov_backend.dynamo import options as option_names
from ov_backend.dynamo.graph import DynamoGraph
from ov_backend.errors import ConversionError, NothingToCompute, OVBackendError
from ov_backend.runtime.program import Program
from ov_backend.runtime.program import build as build_program
from ov_backend.report.svg import engineering
from ov_backend.settings import Settings, operator_name
from ov_backend.guards.signature import Binder


@dataclass(frozen=True)
class Unsupported:
    """One operator that stays in PyTorch.

    Attributes:
        operator: ``aten.name.overload``.
        count: how often it stands in the graph.
        reason: why it stays.
        lines: where the model's code calls it, as ``file:line: code``.
    """

    operator: str
    count: int
    reason: str
    lines: tuple[str, ...] = ()


@dataclass(frozen=True)
class Part:
    """A run of operators on one side.

    Attributes:
        where: "OpenVINO" or "PyTorch".
        operators: how many there are.
        flops: an estimate.
        bytes: an estimate.
        names: the operators, each once, the most frequent first.
    """

    where: str
    operators: int
    flops: int
    bytes: int
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class GraphReport:
    """One graph.

    Attributes:
        name: as in the statistics.
        operators: how many there are.
        percent: share of them that runs in OpenVINO.
        unsupported: those that do not.
        parts: the partitions, in the order they run.
        weight_bytes: size of the weights.
        reason: why the graph cannot be converted at all, or "".
    """

    name: str
    operators: int
    percent: float
    unsupported: tuple[Unsupported, ...]
    parts: tuple[Part, ...]
    weight_bytes: int
    reason: str = ""

    @property
    def flops(self) -> int:
        """Multiplications and additions of all matrix products and convolutions."""
        return sum(part.flops for part in self.parts)

    @property
    def bytes(self) -> int:
        """What all operators read and write, each by itself."""
        return sum(part.bytes for part in self.parts)

    def text(self) -> str:
        """A few lines to read."""
        inside = sum(part.where == "OpenVINO" for part in self.parts)
        counts = _counted(self.operators, "operator"), _counted(inside, "partition")
        head = f"{self.name}: {counts[0]}, {self.percent:.4g} % in OpenVINO, {counts[1]}"
        amounts = f"{engineering(self.flops)}FLOP, {engineering(self.bytes)}B, weights {engineering(self.weight_bytes)}B"
        lines = [f"{head}, {amounts}"]
        if self.reason:
            lines.append(f"    in PyTorch as a whole: {self.reason}")
        for one in self.unsupported:
            lines.append(f"    in PyTorch: {one.count} x {one.operator}: {one.reason}")
            lines += [f"        {line}" for line in one.lines]
        return "\n".join(lines)


@dataclass(frozen=True)
class Report:
    """Every graph of a model, and where the model breaks into several."""

    graphs: tuple[GraphReport, ...]
    breaks: tuple[str, ...] = field(default=())

    @property
    def percent(self) -> float:
        """Share of all operators that run in OpenVINO."""
        total = sum(graph.operators for graph in self.graphs)
        return 100.0 if not total else sum(graph.percent * graph.operators for graph in self.graphs) / total

    def text(self) -> str:
        """To read in a terminal."""
        counts = ", ".join(_counted(len(what), name) for what, name in ((self.graphs, "graph"), (self.breaks, "graph break")))
        head = f"{counts}, {self.percent:.4g} % of the operators in OpenVINO"
        return "\n".join([head, *(graph.text() for graph in self.graphs), *(f"graph break: {one}" for one in self.breaks)])

    def as_dict(self) -> dict[str, Any]:
        """A plain dict, for JSON."""
        graphs_ = [{**asdict(graph), "flops": graph.flops, "bytes": graph.bytes} for graph in self.graphs]
        return {"percent": self.percent, "graphs": graphs_, "breaks": list(self.breaks)}

    def json(self) -> str:
        """As JSON."""
        return json.dumps(self.as_dict(), indent=2)

    def svg(self) -> str:
        """A picture of the partitions."""
        return report_svg.draw(self.as_dict())

    def __str__(self) -> str:
        return self.text()


def explain(model: Callable[..., Any], *inputs: Any, options: Mapping[str, Any] | None = None, **keywords: Any) -> Report:
    """Run ``model(*inputs)`` once through Dynamo, in PyTorch, and report on every graph it becomes.

    Args:
        model: a module or function.
        inputs: one call's arguments.
        options: as for ``torch.compile``.
        keywords: one call's keyword arguments.

    Raises:
        SettingsError: an option is unknown or has an unusable value.
    """
    settings = option_names.parse(options)
    found: list[GraphReport] = []

    def collect(gm: GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        graph, name = DynamoGraph(gm), f"graph {len(found)}"
        place = len(found)
        found.append(GraphReport(name, 0, 0.0, (), (), 0, "it was not run"))

        def run(*args: Any) -> Any:
            if found[place].reason == "it was not run":
                found[place] = of_graph(name, graph, graph.full(args), settings)
            return gm(*args)

        return run

    torch._dynamo.reset()
    with torch.no_grad():
        torch.compile(model, backend=collect, dynamic=False)(*inputs, **keywords)
        torch._dynamo.reset()
        told = torch._dynamo.explain(model)(*inputs, **keywords)
    torch._dynamo.reset()
    return Report(tuple(found), tuple(_break(reason) for reason in told.break_reasons))


def of_module(name: str, module: torch.nn.Module, *args: Any, settings: Settings | None = None, **kwargs: Any) -> GraphReport:
    """Report on a whole module, traced as the engine traces it; nothing is computed, the weights may be uninitialised."""
    weights = capture.weights_of(module)
    call = Binder(module.forward)(args, kwargs)
    names = [spec.name for spec in call.signature.tensors]
    try:
        captured = capture.capture(module, module.forward, weights, names, call.tensors, call.arguments)
    except OVBackendError as error:
        return GraphReport(name, 0, 0.0, (), (), _size(weights.values()), str(error))
    return _of_captured(name, captured.gm, list(captured.slots), list(captured.inputs), settings or Settings())


def of_graph(name: str, graph: DynamoGraph, full: Sequence[Any], settings: Settings) -> GraphReport:
    """Report on one Dynamo graph."""
    weights = set(graph.weights(full))
    order = [*sorted(weights), *(i for i in range(len(full)) if i not in weights and isinstance(full[i], torch.Tensor))]

    def run(slots: Sequence[Any], inputs: Sequence[Any]) -> list[Any]:
        given = list(full)
        for i, value in zip(order, [*slots, *inputs]):
            given[i] = value
        with torch.fx.traceback.preserve_node_meta():
            results = Interpreter(graph.gm).run(*given) if len(given) == graph.placeholders else graph(*given)
        return list(hazards.tensors(results))

    try:
        gm = capture.trace(run, [full[i] for i in sorted(weights)], [full[i] for i in order[len(weights) :]])
    except OVBackendError as error:
        return GraphReport(name, 0, 0.0, (), (), _size(full[i] for i in weights), str(error))
    slots = [f"weight_{i}" for i in sorted(weights)]
    return _of_captured(name, gm, slots, [f"input_{i}" for i in order[len(weights) :]], settings)


def _of_captured(name: str, gm: GraphModule, slots: list[str], inputs: list[str], settings: Settings) -> GraphReport:
    lines = {str(node.target): list[str]() for node in gm.graph.nodes}
    for node in gm.graph.nodes:
        line = _source(node)
        if line and line not in lines[str(node.target)]:
            lines[str(node.target)].append(line)
    settings = settings.replace(min_block_size=1)
    seen: list[GraphModule] = []

    def converter(part: GraphModule, part_slots: Sequence[str], part_inputs: Sequence[str], whole: bool) -> convert.Graph:
        seen.append(part)
        return graphs.converted(part, part_slots, part_inputs, settings)

    holders = [node for node in gm.graph.nodes if node.op == "placeholder"][: len(slots)]
    size = _size(node.meta["val"] for node in holders)
    lowered = graphs.lowered(gm, settings)
    try:
        program = build_program(lowered, slots, inputs, settings, converter)
    except NothingToCompute:
        return GraphReport(name, 0, 100.0, (), (), size)
    except ConversionError as error:
        in_pytorch = partition.coverage(lowered, dict.fromkeys(partition.operators(lowered), str(error)))
        return GraphReport(name, in_pytorch.total, 0.0, (), tuple(_parts(None, lowered)), size, str(error))
    coverage = program.coverage
    unsupported = [
        Unsupported(op, count, coverage.reasons[op], tuple(lines.get(op, ())))
        for op, count in sorted(coverage.in_pytorch.items(), key=lambda item: -item[1])
    ]
    parts = tuple(_parts(program, seen[-1]))
    return GraphReport(name, coverage.total, coverage.percent, tuple(unsupported), parts, size)


def _parts(program: Program | None, gm: GraphModule) -> Iterator[Part]:
    if program is None or program.outer is None:
        yield _part("PyTorch" if program is None else "OpenVINO", partition.operators(gm))
        return
    waiting: list[Node] = []
    for node in program.outer.graph.nodes:
        if node.op == "call_module":
            if waiting:
                yield _part("PyTorch", waiting)
                waiting = []
            yield _part("OpenVINO", partition.operators(program.outer.get_submodule(str(node.target))))
        elif node.op == "call_function" and getattr(node.target, "__name__", "") != "getitem":
            waiting.append(node)
    if waiting:
        yield _part("PyTorch", waiting)


def _part(where: str, nodes: Sequence[Node]) -> Part:
    names = Counter(operator_name(node.target) for node in nodes)
    return Part(where, len(nodes), sum(map(_flops, nodes)), sum(map(_bytes, nodes)), tuple(n for n, _ in names.most_common()))


def _flops(node: Node) -> int:
    """By PyTorch's own FLOP counter, from the shapes."""
    from torch.utils import flop_counter

    registry: Mapping[Any, Any] = getattr(flop_counter, "flop_registry", None) or flop_counter.flop_mapping
    rule = registry.get(getattr(node.target, "overloadpacket", None))
    if rule is None and operator_name(node.target) == "aten.scaled_dot_product_attention.default":
        query, key, value = (tuple(n.meta["val"].shape) for n in node.args[:3])
        rows = torch.Size(query[:-1]).numel()
        return 2 * rows * key[-2] * (query[-1] + value[-1])
    value = node.meta.get("val")
    if rule is None or value is None:
        return 0
    shapes = torch.fx.node.map_arg((node.args, node.kwargs), lambda n: _shape(n.meta.get("val")))
    named = "out_val" if hasattr(rule, "__wrapped__") else "out_shape"  # since torch 2.2 the rules take the result
    return int(rule(*shapes[0], **shapes[1], **{named: _shape(value)}))


def _shape(value: Any) -> Any:
    if isinstance(value, (tuple, list)):
        return tuple(_shape(item) for item in value)
    return value.shape if isinstance(value, torch.Tensor) else value


def _bytes(node: Node) -> int:
    return _size(n.meta.get("val") for n in [node, *node.all_input_nodes])


def _size(values: Any) -> int:
    return sum(t.numel() * t.element_size() for t in hazards.tensors(list(values)))


def _source(node: Node) -> str:
    """``file:line: code`` of the innermost line of the model's own code."""
    found = re.findall(r'File "([^"]+)", line (\d+), in [^\n]*\n\s*([^\n]*)', str(node.meta.get("stack_trace") or ""))
    return "{}:{}: {}".format(*found[-1]) if found else ""


def _break(reason: Any) -> str:
    stack = getattr(reason, "user_stack", None) or []
    where = f"{stack[-1].filename}:{stack[-1].lineno}: {stack[-1].line}" if stack else ""
    return f"{str(reason.reason).strip().splitlines()[0]} at {where}"


def _counted(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"
