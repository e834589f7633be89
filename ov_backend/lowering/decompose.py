"""Decompose operators of a captured graph: those that the user names, and those that the converter refuses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._guards import tracing
from torch._subclasses import FakeTensorMode
from torch.fx import GraphModule, Interpreter, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.node import map_arg
from torch.utils._python_dispatch import TorchDispatchMode

from ov_backend.lowering.decompositions import Table
from ov_backend.lowering.functionalize import functionalize_intermediates, mutates
from ov_backend.tracing_flag import flag_of_this_thread


def decompose(gm: GraphModule, table: Table) -> GraphModule:
    """The graph traced again with these decompositions; the graph itself if they would change nothing.

    Tracing takes twice as long as the rest of a conversion, and most decompositions leave most calls of their operator alone.
    A decomposition that writes to a view of its own copy is left out: no node would read what it writes.
    """
    operators = {node.target for node in gm.graph.nodes if node.target in table and _changes(table[node.target], node)}
    if not operators:
        return gm
    decomposed = _retraced(gm, table)
    if not _writes(decomposed):
        return decomposed
    writing = {op for op in operators if _writes(_retraced(gm, {op: table[op]}))}
    if writing < operators:
        decomposed = _retraced(gm, {op: rule for op, rule in table.items() if op not in writing})
    return gm if _writes(decomposed) else decomposed


class _Computes(Exception):
    """An operator was called."""


class _NoOperators(TorchDispatchMode):
    def __torch_dispatch__(self, *_: Any, **__: Any) -> Any:
        raise _Computes


def _changes(rule: Callable[..., Any], node: Node) -> bool:
    """Whether a decomposition does something with a call, found without computing anything."""
    try:
        args, kwargs = map_arg((node.args, node.kwargs), lambda each: each.meta["val"])
        with _NoOperators():
            return rule(*args, **kwargs) is not NotImplemented
    except Exception:  # it computes, or asks for something else than types and numbers
        return True


def _writes(gm: GraphModule) -> bool:
    return any(mutates(node) for node in gm.graph.nodes)


def _retraced(gm: GraphModule, table: Table) -> GraphModule:
    values = [node.meta["val"] for node in gm.graph.nodes if node.op == "placeholder"]
    with tracing(None), torch.inference_mode(False), torch.no_grad(), FakeTensorMode(allow_non_fake_inputs=True) as mode:
        fakes = [_fake(mode, value) for value in values]
        with flag_of_this_thread():
            return functionalize_intermediates(make_fx(Interpreter(gm).run, decomposition_table=dict(table))(*fakes))


def _fake(mode: FakeTensorMode, value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    return mode.from_tensor(torch.empty_strided(value.shape, value.stride(), dtype=value.dtype))
