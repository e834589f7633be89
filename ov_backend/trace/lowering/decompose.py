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

from ov_backend.core import tracing_lock
from ov_backend.core.autocast_regions import MarkingAgain
from ov_backend.core.errors import pass_on_signals
from ov_backend.core.fx_utils import is_getitem
from ov_backend.core.tensors import memory_order, nested_tensors, strides_like
from ov_backend.core.tracing_flag import flag_of_this_thread
from ov_backend.trace.lowering.decompositions import Table
from ov_backend.trace.lowering.functionalize import functionalize_intermediates, mutates


def decompose(gm: GraphModule, table: Table) -> GraphModule:
    """The graph traced again with these decompositions; the graph itself if they would change nothing.

    Tracing takes twice as long as the rest of a conversion, and most decompositions leave most calls of their operator alone.
    A decomposition that writes to a view of its own copy is left out: no node would read what it writes. So is one whose results
    have other shapes or dtypes than the operator's: PyTorch's own of attention gives the weights for the log-sum-exp.
    """
    operators = {node.target for node in gm.graph.nodes if node.target in table and _changes(table[node.target], node)}
    if not operators:
        return gm
    decomposed, wrong = _compared(gm, table)
    if _writes(decomposed):
        wrong |= {op for op in operators if _writes(_compared(gm, {op: table[op]})[0])}
    if wrong and wrong < operators:
        decomposed, wrong = _compared(gm, {op: rule for op, rule in table.items() if op not in wrong})
    return gm if wrong or _writes(decomposed) else decomposed


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
    except Exception as error:  # it computes, or asks for something else than types and numbers
        pass_on_signals(error)
        return True


def _writes(gm: GraphModule) -> bool:
    return any(mutates(node) for node in gm.graph.nodes)


class _Compared(MarkingAgain):
    """Runs a graph, and notes the operators whose results have other shapes or dtypes than those of the graph's nodes.

    A result of other strides is laid out as the node's, so that what follows sees the strides of eager.
    """

    def __init__(self, gm: GraphModule) -> None:
        super().__init__(gm)
        self.wrong: set[Any] = set()

    def run_node(self, node: Node) -> Any:
        result, expected = super().run_node(node), node.meta.get("val")
        if node.op != "call_function":
            return result
        if _kinds(result) != _kinds(expected):
            self.wrong.add(node.all_input_nodes[0].target if is_getitem(node) else node.target)
            return result
        return laid_out(result, expected) if isinstance(result, torch.Tensor) else result


def laid_out(value: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """A value with the strides of a tensor without gaps; with those of any other, the value itself."""
    order = memory_order(like.shape, like.stride())
    if value.stride() == like.stride() or like.stride() != strides_like(like.shape, like.stride()):
        return value
    return value.permute(order).contiguous().permute([order.index(dim) for dim in range(like.dim())])


def _kinds(value: Any) -> list[tuple[Any, ...]]:
    return [(tensor.shape, tensor.dtype) for tensor in nested_tensors(value)]


def _compared(gm: GraphModule, table: Table) -> tuple[GraphModule, set[Any]]:
    """The graph traced again, and the operators whose decompositions compute something else than they do."""
    compared = _Compared(gm)
    return retraced(gm, table, compared), compared.wrong & set(table)


def retraced(gm: GraphModule, table: Table, interpreter: Interpreter) -> GraphModule:
    """The graph traced again as an interpreter runs it, with these decompositions."""
    values = [node.meta["val"] for node in gm.graph.nodes if node.op == "placeholder"]
    fake_mode = FakeTensorMode(allow_non_fake_inputs=True)
    with tracing_lock.lock(), tracing(None), torch.inference_mode(False), torch.no_grad(), fake_mode as mode:
        fakes = [_fake(mode, value) for value in values]
        with flag_of_this_thread():
            return functionalize_intermediates(make_fx(interpreter.run, decomposition_table=dict(table))(*fakes))


def _fake(mode: FakeTensorMode, value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    return mode.from_tensor(torch.empty_strided(value.shape, value.stride(), dtype=value.dtype))
