"""Whether OpenVINO can run a whole graph with symbolic sizes, and how far these sizes may grow."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from ov_backend.errors import ConversionError
from ov_backend.fx_utils import operators
from ov_backend.partitioning import int64_range
from ov_backend.partitioning.partitioner import VIEW, aliased_outputs, inexact_values, reason, returned_constants
from ov_backend.settings import Settings, operator_name

#: Tried in this order where int64 values grow with the sizes: the factor by which the sizes may grow. The values must fit int32.
_FACTORS = (64, 8)


def check(gm: GraphModule, sizes: Mapping[Any, int], settings: Settings) -> float:
    """The factor by which the sizes of a traced graph may grow while OpenVINO computes all of it.

    Args:
        gm: ATen graph with symbolic sizes.
        sizes: the sizes that the symbols had when it was traced.
        settings: which operators may not run in OpenVINO.

    Raises:
        ConversionError: an operator must stay in PyTorch.
    """
    reasons: dict[Node, str] = {**dict.fromkeys(aliased_outputs(gm), VIEW), **returned_constants(gm)}
    traced = _concrete(gm, sizes)
    for node in operators(traced):
        why = reason(node, settings) if _computes_tensors(node) else ""
        reasons.update({node: why} if why else {})
    for node, why in {**reasons, **inexact_values(traced, settings)}.items():
        raise ConversionError(f"{operator_name(node.target)} {why}")
    for factor in _FACTORS:
        grown = _concrete(gm, {symbol: size * factor for symbol, size in sizes.items()})
        if int64_range.largest(grown, settings.wide_integers) == int64_range.largest(traced, settings.wide_integers):
            return math.inf
        if not inexact_values(grown, settings):
            return factor
    return 1


def _computes_tensors(node: Node) -> bool:
    return isinstance(node.meta.get("val"), (torch.Tensor, tuple, list))


def _concrete(gm: GraphModule, sizes: Mapping[Any, int]) -> GraphModule:
    """A copy whose values have the sizes that these sizes of the symbols give them."""
    graph = Graph()
    graph.output(graph.graph_copy(gm.graph, {}))
    for old, new in zip(gm.graph.nodes, graph.nodes):
        new.meta = dict(old.meta)
        if "val" in old.meta:
            new.meta["val"] = _value(old.meta["val"], sizes)
    return GraphModule(gm, graph)


def _value(value: Any, sizes: Mapping[Any, int]) -> Any:
    if isinstance(value, (tuple, list)):
        return type(value)(_value(item, sizes) for item in value)
    if isinstance(value, torch.Tensor):
        return torch.empty((), dtype=value.dtype, device="meta").expand([_value(size, sizes) for size in value.shape])
    if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        number = value.node.expr.subs(dict(sizes))
        return int(number) if isinstance(value, torch.SymInt) else float(number)
    return value
