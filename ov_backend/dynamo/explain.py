"""``ov_backend.explain``: a report on every graph that Dynamo captures from a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Interpreter

from ov_backend.capture.trace import Captured, trace
from ov_backend.dynamo.graph import DynamoGraph
from ov_backend.dynamo.options import parse as parse_options
from ov_backend.errors import OVBackendError, SettingsError, first_line, short_repr
from ov_backend.report.coverage import GraphReport, Report, of_captured
from ov_backend.report.flops import byte_size
from ov_backend.settings import Settings
from ov_backend.tensors import nested_tensors

_NOT_RUN = "it was not run"


def explain(model: Callable[..., Any], *inputs: Any, options: Mapping[str, Any] | None = None, **keywords: Any) -> Report:
    """Run ``model(*inputs)`` once through Dynamo, in PyTorch, and report on every captured graph.

    Args:
        model: a module or function.
        inputs: one call's arguments.
        options: as for ``torch.compile``.
        keywords: one call's keyword arguments.

    Raises:
        SettingsError: the model is none, or an option is unknown or has an unusable value.
    """
    if not callable(model):
        raise SettingsError(f"The model is {short_repr(model)}; it must be a module or a function.")
    settings = parse_options(options)
    reports: list[GraphReport] = []

    def collect(gm: GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        graph, index = DynamoGraph(gm), len(reports)
        name = f"graph {index}"
        reports.append(GraphReport(name, 0, 0.0, (), (), 0, _NOT_RUN))

        def run(*args: Any) -> Any:
            if reports[index].reason == _NOT_RUN:
                reports[index] = of_graph(name, graph, graph.full(args), settings)
            return gm(*args)

        return run

    torch._dynamo.reset()
    with torch.no_grad():
        torch.compile(model, backend=collect, dynamic=False)(*inputs, **keywords)
        torch._dynamo.reset()
        explanation = torch._dynamo.explain(model)(*inputs, **keywords)
    torch._dynamo.reset()
    return Report(tuple(reports), tuple(_break(reason) for reason in explanation.break_reasons))


def of_graph(name: str, graph: DynamoGraph, full: Sequence[Any], settings: Settings) -> GraphReport:
    """Report on one Dynamo graph."""
    weights = set(graph.weights(full))
    order = [*sorted(weights), *(i for i in range(len(full)) if i not in weights and isinstance(full[i], torch.Tensor))]

    def run(slots: Sequence[Any], inputs: Sequence[Any]) -> list[Any]:
        arguments = list(full)
        for i, value in zip(order, [*slots, *inputs]):
            arguments[i] = value
        with torch.fx.traceback.preserve_node_meta():
            results = Interpreter(graph.gm).run(*arguments) if len(arguments) == graph.placeholders else graph(*arguments)
        return list(nested_tensors(results))

    try:
        gm = trace(run, [full[i] for i in sorted(weights)], [full[i] for i in order[len(weights) :]])
    except OVBackendError as error:
        return GraphReport(name, 0, 0.0, (), (), byte_size(full[i] for i in weights), str(error))
    slots, inputs = sorted(weights), order[len(weights) :]
    captured = Captured(gm, tuple(f"weight_{i}" for i in slots), tuple(f"input_{i}" for i in inputs), {})
    return of_captured(name, captured, settings)


def _break(reason: Any) -> str:
    stack = getattr(reason, "user_stack", None) or []
    where = f"{stack[-1].filename}:{stack[-1].lineno}: {stack[-1].line}" if stack else ""
    return f"{first_line(reason.reason)} at {where}"
