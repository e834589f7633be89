"""How much of a model runs in OpenVINO: coverage, unsupported operators and their source lines, FLOPs and bytes.

:func:`of_module` traces a whole module, as the engine does; ``torch_compile/reporter.py`` looks at the compiles of Dynamo's
graphs. Both convert every partition, so that the figures are those of a real run; OpenVINO compiles nothing.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch.fx import GraphModule, Node

from ov_backend.core.amounts import counted, engineering, size_text
from ov_backend.core.errors import ConversionError, OVBackendError
from ov_backend.core.fx_utils import is_getitem, operators, placeholders
from ov_backend.core.settings import Settings, operator_name
from ov_backend.core.tensors import nested_tensors
from ov_backend.guards.signature import Binder
from ov_backend.guards.weights import weights_of
from ov_backend.model import compiler
from ov_backend.torch_compile.report.svg import draw
from ov_backend.trace.capture.forward import capture
from ov_backend.trace.capture.trace import Captured


@dataclass(frozen=True)
class Unsupported:
    """One operator that stays in PyTorch, ``aten.name.overload``, with its count and the reason.

    ``lines`` are where the model calls it, as ``file:line: code``.
    """

    operator: str
    count: int
    reason: str
    lines: tuple[str, ...] = ()


@dataclass(frozen=True)
class Part:
    """A partition: consecutive operators that run in the same place, "OpenVINO" or "PyTorch", the most frequent first.

    FLOPs, and bytes read and written, are estimates.
    """

    where: str
    operators: int
    flops: int
    bytes: int
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class GraphReport:
    """The report on one graph: its operators, the share of them that runs in OpenVINO (0 where there is none), and its
    partitions.

    ``name`` is as in the statistics, ``title`` the user's, or "" if that is the same; ``reason`` says why the graph cannot be
    converted at all, or is "".
    """

    name: str
    operators: int
    percent: float
    unsupported: tuple[Unsupported, ...]
    parts: tuple[Part, ...]
    weight_bytes: int
    reason: str = ""
    title: str = ""

    @property
    def label(self) -> str:
        """Its name for the user."""
        return self.title or self.name

    @property
    def flops(self) -> int:
        """Estimated multiplications and additions of all matrix products and convolutions."""
        return sum(part.flops for part in self.parts)

    @property
    def bytes(self) -> int:
        """Estimated bytes that the operators read and write."""
        return sum(part.bytes for part in self.parts)

    def text(self) -> str:
        """A summary in a few lines."""
        inside = sum(part.where == "OpenVINO" for part in self.parts)
        counts = counted(self.operators, "operator"), counted(inside, "partition")
        head = f"{self.label}: {counts[0]}, {self.percent:.4g} % in OpenVINO, {counts[1]}"
        traffic, weights = size_text(self.bytes), size_text(self.weight_bytes)
        amounts = f"{engineering(self.flops)}FLOP, {traffic} read and written, weights {weights}"
        lines = [f"{head}, {amounts}"]
        if self.reason:
            lines.append(f"    in PyTorch as a whole: {self.reason}")
        for unsupported in self.unsupported:
            lines.append(f"    in PyTorch: {unsupported.count} x {unsupported.operator}: {unsupported.reason}")
            lines += [f"        {line}" for line in unsupported.lines]
        return "\n".join(lines)


@dataclass(frozen=True)
class Report:
    """The reports on all graphs of a model, its graph breaks, and why Dynamo makes no graph of some functions."""

    graphs: tuple[GraphReport, ...]
    breaks: tuple[str, ...] = field(default=())
    without_graph: tuple[str, ...] = field(default=())

    @property
    def percent(self) -> float:
        """Share of the operators that run in OpenVINO, in percent; 0 where there is no operator.

        How many a function has of which there is no graph, nobody knows; it counts as one, and the share is the largest possible.
        """
        total = sum(graph.operators for graph in self.graphs) + len(self.without_graph)
        return 0.0 if not total else sum(graph.percent * graph.operators for graph in self.graphs) / total

    def text(self) -> str:
        """A summary for the terminal."""
        counts = f"{counted(len(self.graphs), 'graph')}, {counted(len(self.breaks), 'graph break')}"
        at_most = "at most " if self.percent and self.without_graph else ""
        head = f"{counts}, {at_most}{self.percent:.4g} % of the operators in OpenVINO"
        reasons = self.without_graph or (() if self.graphs else ("Dynamo makes no graph of it",))
        none = [f"    in PyTorch as a whole: {reason}" for reason in reasons]
        graphs = [graph.text() for graph in self.graphs]
        return "\n".join([head, *none, *graphs, *(f"graph break: {place}" for place in self.breaks)])

    def as_dict(self) -> dict[str, Any]:
        """The report as a dict, for JSON."""
        graphs = [{**asdict(graph), "label": graph.label, "flops": graph.flops, "bytes": graph.bytes} for graph in self.graphs]
        for graph in graphs:
            del graph["title"]  # the label says it
        return {"percent": self.percent, "graphs": graphs, "breaks": list(self.breaks), "without_graph": list(self.without_graph)}

    def json(self) -> str:
        """The report as JSON."""
        return json.dumps(self.as_dict(), indent=2)

    def svg(self) -> str:
        """A drawing of the partitions, as an SVG document."""
        return draw(self.as_dict())

    def __str__(self) -> str:
        return self.text()


def of_module(name: str, module: torch.nn.Module, *args: Any, settings: Settings | None = None, **kwargs: Any) -> GraphReport:
    """Report on a whole module, traced as by the engine; nothing is computed, and the weights may be uninitialised."""
    weights, settings = weights_of(module), (settings or Settings()).replace(min_block_size=1)
    call = Binder(module.forward)(args, kwargs)
    names = [spec.name for spec in call.signature.tensors]
    try:
        captured = capture(module, module.forward, weights, names, call.tensors, call.arguments)
    except OVBackendError as error:
        return GraphReport(name, 0, 0.0, (), (), byte_size(weights.values()), str(error))
    try:
        return of_compilation(name, captured, compiler.Compiler(captured, settings).compile())
    except ConversionError as error:
        return of_refused(name, captured, settings, error)


def of_compilation(name: str, captured: Captured, compilation: compiler.Compilation) -> GraphReport:
    """Report on one captured graph that was converted."""
    lines, coverage = _lines(captured.gm), compilation.program.coverage
    unsupported = [
        Unsupported(op, count, coverage.reasons[op], tuple(lines.get(op, ())))
        for op, count in sorted(coverage.in_pytorch.items(), key=lambda item: -item[1])
    ]
    parts = tuple(_parts(compilation))
    return GraphReport(name, coverage.total, coverage.percent, tuple(unsupported), parts, _weight_bytes(captured))


def of_refused(name: str, captured: Captured, settings: Settings, error: ConversionError) -> GraphReport:
    """Report on one captured graph of which nothing runs in OpenVINO."""
    gm = compiler.lowered(captured, settings)
    parts = (_part("PyTorch", operators(gm)),) if operators(gm) else ()
    return GraphReport(name, len(operators(gm)), 0.0, (), parts, _weight_bytes(captured), str(error))


def _weight_bytes(captured: Captured) -> int:
    return byte_size(node.meta["val"] for node in placeholders(captured.gm)[: len(captured.slots)])


def _lines(gm: GraphModule) -> dict[str, list[str]]:
    """The lines of the model's code that call each operator."""
    lines = {str(node.target): list[str]() for node in gm.graph.nodes}
    for node in gm.graph.nodes:
        line = _source(node)
        if line and line not in lines[str(node.target)]:
            lines[str(node.target)].append(line)
    return lines


def _parts(compilation: compiler.Compilation) -> Iterator[Part]:
    outer = compilation.program.outer
    if outer is None:
        yield _part("OpenVINO", operators(compilation.gm))
        return
    in_pytorch: list[Node] = []
    for node in outer.graph.nodes:
        if node.op == "call_module":
            if in_pytorch:
                yield _part("PyTorch", in_pytorch)
                in_pytorch = []
            yield _part("OpenVINO", operators(outer.get_submodule(str(node.target))))
        elif node.op == "call_function" and not is_getitem(node):
            in_pytorch.append(node)
    if in_pytorch:
        yield _part("PyTorch", in_pytorch)


def _part(where: str, nodes: Sequence[Node]) -> Part:
    names = Counter(operator_name(node.target) for node in nodes)
    flops, traffic = sum(map(flops_of, nodes)), sum(map(traffic_of, nodes))
    return Part(where, len(nodes), flops, traffic, tuple(name for name, _ in names.most_common()))


def _source(node: Node) -> str:
    """The innermost line of the model's code that calls a node, as ``file:line: code``, or ""."""
    frames = re.findall(r'File "([^"]+)", line (\d+), in [^\n]*\n\s*([^\n]*)', str(node.meta.get("stack_trace") or ""))
    return "{}:{}: {}".format(*frames[-1]) if frames else ""


def flops_of(node: Node) -> int:
    """Floating-point operations of one operator, from PyTorch's flop counter."""
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
    keyword = "out_val" if hasattr(rule, "__wrapped__") else "out_shape"  # renamed in torch 2.2
    return int(rule(*shapes[0], **shapes[1], **{keyword: _shape(value)}))


def _shape(value: Any) -> Any:
    if isinstance(value, (tuple, list)):
        return tuple(_shape(item) for item in value)
    return value.shape if isinstance(value, torch.Tensor) else value


def traffic_of(node: Node) -> int:
    """Bytes that one operator reads and writes."""
    return byte_size(n.meta.get("val") for n in [node, *node.all_input_nodes])


def byte_size(values: Any) -> int:
    """Bytes of all tensors in nested tuples and lists."""
    return sum(t.numel() * t.element_size() for t in nested_tensors(list(values)))
