"""The page of all rewrites, made from the code: ``python -m tests.helpers.rewrites`` writes it."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from pathlib import Path

from ov_backend.model.transformations.cpu_faults import RULES
from ov_backend.trace.lowering import PASSES
from ov_backend.trace.partitioning.known_wrong import FAULTS

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "rewrites.md"


def page() -> str:
    """The text of the page."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    yield "# Rewrites"
    yield ""
    yield "What OpenVINO would answer differently, or not at all, is computed in another form or by PyTorch."
    yield "This page is made from the code by `python -m tests.helpers.rewrites`."
    yield ""
    yield "## Of the model, for the CPU device"
    yield ""
    yield "`model/transformations/`, seen with OpenVINO 2026.4; each has a test in `tests/model/transformations/test_rules.py`."
    yield ""
    yield "| nodes | what is wrong | the rule, which mends it |"
    yield "|---|---|---|"
    for rule in RULES:
        where = rule.rewrite.__module__.removeprefix("ov_backend.model.transformations.")
        kinds = ", ".join(sorted(rule.kinds)) or "all"
        yield f"| {kinds} | {rule.fault} | `{where}.{rule.name}`: {_first_sentence(rule.rewrite)} |"
    yield ""
    yield "## Of the graph, before it is converted"
    yield ""
    yield "`ov_backend/trace/lowering/passes/`, in this order."
    yield ""
    yield "| pass | what it does |"
    yield "|---|---|"
    for each in PASSES:
        yield f"| `{each.__name__}` | {_first_sentence(sys.modules[each.__module__])} |"
    yield ""
    yield "## Operators that stay in PyTorch"
    yield ""
    yield "`ov_backend/trace/partitioning/known_wrong.py`; for some arguments only where the condition says so."
    yield ""
    yield "| operators | condition | why |"
    yield "|---|---|---|"
    for fault in FAULTS:
        condition = fault.condition.__name__.strip("_").replace("_", " ")
        yield f"| {', '.join(f'`{name}`' for name in fault.operators) or 'all'} | {condition} | {fault.reason} |"


def _first_sentence(documented: object) -> str:
    """The first paragraph of a docstring, in one line, without its full stop."""
    return " ".join((inspect.getdoc(documented) or "").partition("\n\n")[0].split()).removesuffix(".").replace("``", "`")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
