"""Decompose operators of a captured graph: those that the user names, and those that the converter refuses."""

from __future__ import annotations

from typing import Any

import torch
from torch._guards import tracing
from torch._subclasses import FakeTensorMode
from torch.fx import GraphModule, Interpreter
from torch.fx.experimental.proxy_tensor import make_fx

from ov_backend.lowering.decompositions import Table
from ov_backend.lowering.functionalize import functionalize_intermediates, mutates


def decompose(gm: GraphModule, table: Table) -> GraphModule:
    """The graph traced again with these decompositions; the graph itself if it has none of these operators.

    A decomposition that writes to a view of its own copy is left out: no node would read what it writes.
    """
    operators = {node.target for node in gm.graph.nodes if node.target in table}
    if not operators:
        return gm
    decomposed = _retraced(gm, table)
    if not _writes(decomposed):
        return decomposed
    writing = {op for op in operators if _writes(_retraced(gm, {op: table[op]}))}
    if writing < operators:
        decomposed = _retraced(gm, {op: rule for op, rule in table.items() if op not in writing})
    return gm if _writes(decomposed) else decomposed


def _writes(gm: GraphModule) -> bool:
    return any(mutates(node) for node in gm.graph.nodes)


def _retraced(gm: GraphModule, table: Table) -> GraphModule:
    values = [node.meta["val"] for node in gm.graph.nodes if node.op == "placeholder"]
    with tracing(None), torch.inference_mode(False), torch.no_grad(), FakeTensorMode(allow_non_fake_inputs=True) as mode:
        fakes = [_fake(mode, value) for value in values]
        return functionalize_intermediates(make_fx(Interpreter(gm).run, decomposition_table=dict(table))(*fakes))


def _fake(mode: FakeTensorMode, value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    return mode.from_tensor(torch.empty_strided(value.shape, value.stride(), dtype=value.dtype))
