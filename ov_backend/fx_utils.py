"""Helpers for FX graphs that several stages use: nodes and their values, a graph's text, lazily generated code."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterable
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from ov_backend.settings import operator_name

try:
    from torch.fx import _lazy_graph_module as lazy
except ImportError:  # torch 2.1 does not have it; there the code is generated each time
    lazy = None


def is_getitem(node: Node) -> bool:
    """Whether a node selects one of several results of another node."""
    return getattr(node.target, "__name__", "") == "getitem"


def placeholders(gm: GraphModule) -> list[Node]:
    """The inputs of a graph, in order."""
    return [node for node in gm.graph.nodes if node.op == "placeholder"]


def output_node(gm: GraphModule) -> Node:
    """The node that returns the results of a graph."""
    (output,) = (node for node in gm.graph.nodes if node.op == "output")
    return output


def operators(gm: GraphModule) -> list[Node]:
    """The nodes of a graph that compute something."""
    return [node for node in gm.graph.nodes if node.op == "call_function" and not is_getitem(node)]


def only_first_result_is_read(node: Node) -> bool:
    """Whether no other node reads more than the first of a node's results."""
    return all(is_getitem(user) and (user.args[1] == 0 or not user.users) for user in node.users)


def values_read(node: Node) -> list[torch.Tensor]:
    """The tensors that a node computes; of several results, only those that another node reads."""
    value: Any = node.meta.get("val")
    if not isinstance(value, (tuple, list)):
        return [value] if isinstance(value, torch.Tensor) else []
    indices = {user.args[1] for user in node.users if is_getitem(user) and user.users}
    everything = any(not is_getitem(user) for user in node.users)
    return [item for i, item in enumerate(value) if isinstance(item, torch.Tensor) and (everything or i in indices)]


def lazy_code() -> contextlib.AbstractContextManager[Any]:
    """In this block, torch generates the Python code of a graph module at its first call.

    Most graphs here are never called. Generating the code of a UNet's thousand operators four times took a tenth of its
    capture.
    """
    return lazy._use_lazy_graph_module(True) if lazy else contextlib.nullcontext()


def graph_module(root: Any, graph: Graph) -> GraphModule:
    """A graph module whose Python code is generated at its first call."""
    return lazy._LazyGraphModule(root, graph) if lazy else GraphModule(root, graph)


def copy(gm: GraphModule) -> GraphModule:
    """A copy whose nodes have the same names and metadata."""
    graph = Graph()
    graph.output(graph.graph_copy(gm.graph, {}))
    graph.set_codegen(torch.fx.graph.CodeGen())
    copied = GraphModule(gm, graph)
    for old, new in zip(gm.graph.nodes, copied.graph.nodes):
        new.meta = dict(old.meta)
    return copied


def graph_text(gm: GraphModule) -> str:
    """A graph as text, with every argument and edge. Graphs of equal text compute the same, whatever their nodes' names."""
    numbers: dict[Node, int] = {}
    lines = []
    for node in gm.graph.nodes:
        numbers[node] = len(numbers)
        lines.append(" ".join(_node_text(node, numbers, gm)))
    return "\n".join(lines)


def _node_text(node: Node, numbers: dict[Node, int], gm: GraphModule) -> Iterable[str]:
    yield f"%{numbers[node]} {node.op}"
    if node.op == "get_attr":
        yield _content(getattr(gm, str(node.target)))
    elif node.op != "placeholder":
        yield operator_name(node.target) if node.op == "call_function" else str(node.op)
    yield _argument_text(node.args if node.op != "placeholder" else (), numbers)
    yield _argument_text(node.kwargs, numbers)
    value = node.meta.get("val")
    for item in value if isinstance(value, (tuple, list)) else (value,):
        if isinstance(item, torch.Tensor):
            yield f"{item.dtype}{list(item.shape)}{list(item.stride())}"


def _argument_text(value: Any, numbers: dict[Node, int]) -> str:
    if isinstance(value, Node):
        return f"%{numbers[value]}"
    if isinstance(value, (tuple, list)):
        return "(" + ",".join(_argument_text(item, numbers) for item in value) + ")"
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}={_argument_text(value[key], numbers)}" for key in sorted(value)) + "}"
    return f"{type(value).__name__}:{value!r}"


def _content(value: Any) -> str:
    if not isinstance(value, torch.Tensor):
        return type(value).__qualname__
    data = value.detach().contiguous().cpu()
    raw = data.reshape(-1).view(torch.uint8).numpy().tobytes() if data.numel() else b""
    return f"{value.dtype}{list(value.shape)}#{hashlib.sha256(raw).hexdigest()}"
