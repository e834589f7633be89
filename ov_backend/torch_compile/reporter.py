"""Reports on Dynamo's graphs from the very compile that a real run would make of them, up to OpenVINO's own."""

from __future__ import annotations

import functools
import logging
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import torch
from torch.fx import GraphModule, Interpreter

from ov_backend.core.errors import ConversionError, NothingToCompute
from ov_backend.core.settings import Settings
from ov_backend.engine.engine import Engine
from ov_backend.model.compiler import Compilation, Compiler
from ov_backend.torch_compile.report.coverage import GraphReport, Unsupported, of_compilation, of_refused
from ov_backend.trace.capture.trace import Captured

log = logging.getLogger(__name__)

_NOT_RUN = "it was not run"


class Graph(Protocol):
    """A graph of Dynamo's as the backend answers it; ``made`` lists the engines and names of its networks."""

    made: list[tuple[Engine, str]]

    @property
    def apart(self) -> tuple[Sequence[str], str]:
        """The operators that run as in eager between its parts, and why."""

    def __call__(self, *args: Any) -> Any:
        """Answer one call."""


def convert_and_log(name: str, captured: Captured, compiler: Compiler) -> Compilation:
    """Convert a graph; the log gets the report on it."""
    try:
        compilation = compiler.compile()
    except ConversionError as error:
        log.warning("%s", of_refused(name, captured, compiler.settings, error).text())
        raise
    log.warning("%s", of_compilation(name, captured, compilation).text())
    return compilation


class Reporter:
    """Answers calls as the backend does, except that PyTorch computes what was converted; and reports on the conversions.

    ``make`` makes what answers a graph, from the graph, the engines by their settings, and a name.
    """

    def __init__(self, make: Callable[[GraphModule, Callable[[Settings], Engine], Settings, str], Graph], settings: Settings):
        smallest = 1 if settings.min_block_size == math.inf else settings.min_block_size
        self._make, self._settings = make, settings.replace(fallback="pytorch", min_block_size=smallest, debug=False)
        self._engines: dict[Settings, Engine] = {}
        self._graphs: list[tuple[str, GraphModule, Graph]] = []
        self._reports: dict[str, GraphReport] = {}

    def add(self, gm: GraphModule, name: str = "") -> Graph:
        """What answers the calls of one more graph."""
        name = name or f"graph {len(self._graphs)}"
        gm.forward = functools.partial(_run_with_lines, gm)
        graph = self._make(gm, self._engine, self._settings, name)
        self._graphs.append((name, gm, graph))
        return graph

    def reports(self) -> Iterator[GraphReport]:
        """The reports on everything that was called; one for each graph that was not."""
        for name, gm, graph in self._graphs:
            found = [self._reports[each] for _, each in graph.made if each in self._reports]
            yield from found or [_of_graph_in_pytorch(name, gm, graph)]
            operators, reason = graph.apart
            if found and operators:
                apart = tuple(Unsupported(operator, count, reason) for operator, count in Counter(operators).items())
                yield GraphReport(f"{name} between its parts", len(operators), 0.0, apart, (), 0)

    def _engine(self, settings: Settings) -> Engine:
        if settings not in self._engines:
            self._engines[settings] = Engine(settings)
            self._engines[settings].resources.convert = self._convert
        return self._engines[settings]

    def _convert(self, name: str, captured: Captured, compiler: Compiler) -> Compilation:
        try:
            compilation = compiler.compile()
        except ConversionError as error:
            self._reports.setdefault(name, of_refused(name, captured, compiler.settings, error))
            raise
        self._reports.setdefault(name, of_compilation(name, captured, compilation))
        raise NothingToCompute("it is only reported on")


def _run_with_lines(gm: GraphModule, *args: Any) -> Any:
    """Run a graph so that a trace of it notes where each operator stands in the user's code."""
    with torch.fx.traceback.preserve_node_meta():
        return Interpreter(gm).run(*args)


def _of_graph_in_pytorch(name: str, gm: GraphModule, graph: Graph) -> GraphReport:
    """The report on a graph that was never converted, with the reason that its networks have counted."""
    reasons = [network.statistics.last_reason for engine, each in graph.made if (network := engine.networks.get(each))]
    count = sum(node.op.startswith("call_") for node in gm.graph.nodes)
    return GraphReport(name, count, 0.0, (), (), 0, next(filter(None, reasons), _NOT_RUN))
