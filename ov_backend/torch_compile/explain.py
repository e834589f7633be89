"""``ov_backend.explain``: a report on every graph that Dynamo captures from a model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch._dynamo.utils import counters
from torch.fx import GraphModule

from ov_backend.core.errors import SettingsError, first_line, short_repr
from ov_backend.torch_compile.backend import CompiledDynamoGraph
from ov_backend.torch_compile.options import parse as parse_options
from ov_backend.torch_compile.report.coverage import Report
from ov_backend.torch_compile.reporter import Reporter


def explain(model: Callable[..., Any], *inputs: Any, options: Mapping[str, Any] | None = None, **keywords: Any) -> Report:
    """Run ``model(*inputs)`` once through Dynamo, in PyTorch, and report on every captured graph.

    What ``torch.compile`` has compiled before is released: this calls ``torch._dynamo.reset()``.

    Args:
        model: a module or function.
        inputs: one call's arguments.
        options: as for ``torch.compile``.
        keywords: one call's keyword arguments.

    Returns:
        The report: its ``text()``, ``json()`` and ``svg()`` return text, ``percent`` is the share of operators in OpenVINO.

    Raises:
        SettingsError: the model is none, or an option is unknown or has an unusable value.
    """
    if not callable(model):
        raise SettingsError(f"The model is {short_repr(model)}; it must be a module or a function.")
    reporter, breaks, without_graph = Reporter(CompiledDynamoGraph, parse_options(options)), list[str](), list[str]()

    def collect(gm: GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        reason = getattr(gm, "compile_subgraph_reason", None)
        if reason is not None and reason.graph_break:
            breaks.append(_break(reason))
        return reporter.add(gm)

    def given_up(where: str, reason: str, options: Mapping[str, Any]) -> bool:
        breaks.append(f"{reason} in {where}")
        without_graph.append(f"Dynamo makes no graph of {where}: {reason}")
        return False

    collect.frame_given_up = given_up  # type: ignore[attr-defined]
    torch._dynamo.reset()
    before = _counted()
    with torch.no_grad():
        torch.compile(model, backend=collect, dynamic=False)(*inputs, **keywords)
    breaks += () if breaks else map(first_line, _counted() - before)
    torch._dynamo.reset()
    return Report(tuple(reporter.reports()), tuple(breaks), tuple(without_graph))


def _counted() -> Counter[str]:
    """How often Dynamo could not go on, by its reasons; it says no place."""
    return Counter(counters["graph_break"]) | Counter(counters["unimplemented"])


def _break(reason: Any) -> str:
    stack = getattr(reason, "user_stack", None) or []
    where = f"{stack[-1].filename}:{stack[-1].lineno}: {stack[-1].line}" if stack else ""
    return f"{first_line(reason.reason)} at {where}"
