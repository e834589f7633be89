"""Whether OpenVINO can run a whole graph with symbolic sizes, and how far these sizes may grow."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping
from typing import Any

from torch.fx import Graph, GraphModule, Node

from ov_backend.core.errors import ConversionError
from ov_backend.core.fx_utils import concrete, operators
from ov_backend.core.settings import Settings, operator_name
from ov_backend.trace.partitioning import int64_range
from ov_backend.trace.partitioning.partitioner import VIEW, aliased_outputs, inexact_values, reason, returned_constants

#: Tried in this order where int64 values grow with the sizes: the factor by which the sizes may grow. The values must fit int32.
_FACTORS = (64, 8)


def check(gm: GraphModule, sizes: Mapping[Any, float], settings: Settings) -> float:
    """The factor by which the sizes of a traced graph may grow while OpenVINO computes all of it.

    ``sizes`` are the sizes, and the floats, that the symbols were when it was traced.

    Raises:
        ConversionError: an operator must stay in PyTorch.
    """
    reasons: dict[Node, str] = {**dict.fromkeys(aliased_outputs(gm), VIEW), **returned_constants(gm)}
    traced = _concrete(gm, sizes)
    for node in operators(traced):
        why = reason(node, settings)
        reasons.update({node: why} if why else {})
    for node, why in {**reasons, **inexact_values(traced, settings)}.items():
        raise ConversionError(f"{operator_name(node.target)} stays in PyTorch ({why})")
    for factor in _FACTORS:
        with contextlib.suppress(ArithmeticError, TypeError, ValueError):  # a number of so large sizes is beyond what there is
            grown = _concrete(gm, {symbol: max(1, abs(size)) * factor for symbol, size in sizes.items()})
            if int64_range.largest(grown, settings.wide_integers) == int64_range.largest(traced, settings.wide_integers):
                return math.inf
            if not inexact_values(grown, settings):
                return factor
    return 1


def _concrete(gm: GraphModule, sizes: Mapping[Any, float]) -> GraphModule:
    """A copy with sizes in the symbols' place; numbers are arguments then, as in a static graph of these sizes."""
    graph, copies = Graph(), dict[Node, Any]()
    for node in gm.graph.nodes:
        value = concrete(node.meta.get("val"), sizes)
        if isinstance(value, (int, float)):
            copies[node] = value
            continue
        copies[node] = graph.node_copy(node, lambda each: copies[each])
        copies[node].meta = {**node.meta, "val": value}
    return GraphModule(gm, graph)
