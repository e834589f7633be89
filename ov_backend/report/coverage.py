"""How much of a model runs in OpenVINO: coverage, operators that do not and where they come from, FLOPs and bytes.

:func:`of_module` traces a whole module, as the engine does; :mod:`ov_backend.dynamo.explain` goes through Dynamo. Either way
every partition is really converted, so that the figures are those of a real run; nothing is compiled.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch.fx import GraphModule, Node

from ov_backend import compiler, partitioning
from ov_backend.capture.trace import Captured, capture
from ov_backend.errors import ConversionError, NothingToCompute, OVBackendError
from ov_backend.fx_utils import is_getitem, operators, placeholders
from ov_backend.guards.signature import Binder
from ov_backend.guards.weights import weights_of
from ov_backend.report import svg as report_svg
from ov_backend.report.flops import byte_size, flops_of, traffic_of
from ov_backend.report.svg import engineering
from ov_backend.settings import Settings, operator_name


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


def of_module(name: str, module: torch.nn.Module, *args: Any, settings: Settings | None = None, **kwargs: Any) -> GraphReport:
    """Report on a whole module, traced as the engine traces it; nothing is computed, the weights may be uninitialised."""
    weights = weights_of(module)
    call = Binder(module.forward)(args, kwargs)
    names = [spec.name for spec in call.signature.tensors]
    try:
        captured = capture(module, module.forward, weights, names, call.tensors, call.arguments)
    except OVBackendError as error:
        return GraphReport(name, 0, 0.0, (), (), byte_size(weights.values()), str(error))
    return of_captured(name, captured, settings or Settings())


def of_captured(name: str, captured: Captured, settings: Settings) -> GraphReport:
    """Report on one captured graph."""
    lines = _lines(captured.gm)
    settings = settings.replace(min_block_size=1)
    size = byte_size(node.meta["val"] for node in placeholders(captured.gm)[: len(captured.slots)])
    try:
        compilation = compiler.Compiler(captured, settings).compile()
    except NothingToCompute:
        return GraphReport(name, 0, 100.0, (), (), size)
    except ConversionError as error:
        gm = compiler.lowered(captured, settings)
        all_of_it = partitioning.coverage(gm, dict.fromkeys(operators(gm), str(error)))
        return GraphReport(name, all_of_it.total, 0.0, (), (_part("PyTorch", operators(gm)),), size, str(error))
    coverage = compilation.program.coverage
    unsupported = [
        Unsupported(op, count, coverage.reasons[op], tuple(lines.get(op, ())))
        for op, count in sorted(coverage.in_pytorch.items(), key=lambda item: -item[1])
    ]
    parts = tuple(_parts(compilation))
    return GraphReport(name, coverage.total, coverage.percent, tuple(unsupported), parts, size)


def _lines(gm: GraphModule) -> dict[str, list[str]]:
    """Where the model's code calls each operator."""
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
    return Part(where, len(nodes), sum(map(flops_of, nodes)), sum(map(traffic_of, nodes)), tuple(n for n, _ in names.most_common()))


def _source(node: Node) -> str:
    """``file:line: code`` of the innermost line of the model's own code."""
    found = re.findall(r'File "([^"]+)", line (\d+), in [^\n]*\n\s*([^\n]*)', str(node.meta.get("stack_trace") or ""))
    return "{}:{}: {}".format(*found[-1]) if found else ""


def _counted(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"
