"""Helpers for FX graphs that several stages use: nodes and their values, a graph's text, lazily generated code."""

from __future__ import annotations

import contextlib
import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import sympy
import torch
from torch.fx import Graph, GraphModule, Node
from torch.utils._sympy import reference
from torch.utils._sympy.interp import sympy_interp

from ov_backend.core.autocast_regions import is_marked
from ov_backend.core.errors import CaptureError
from ov_backend.core.settings import operator_name

try:
    from torch.fx import _lazy_graph_module as lazy
except ImportError:  # torch 2.1 does not have it; there the code is generated each time
    lazy = None

#: The numbers of a trace with symbolic sizes.
NUMBERS = (torch.SymInt, torch.SymFloat, torch.SymBool)
#: Torch 2.1 does not have it.
_HAS_ANALYSIS = hasattr(reference, "PythonReferenceAnalysis")


class _PythonAnalysis(getattr(reference, "PythonReferenceAnalysis", object)):  # type: ignore[misc]
    """Computes an expression as Python does, in Python's numbers throughout.

    PyTorch's own leaves these two to sympy, whose numbers its other methods refuse.
    """

    @staticmethod
    def trunc_to_int(x: float, dtype: Any) -> int:
        return math.trunc(x)

    @staticmethod
    def int_truediv(a: int, b: int) -> float:
        return a / b


def is_getitem(node: Node) -> bool:
    """Whether a node selects one of several results of another node."""
    return getattr(node.target, "__name__", "") == "getitem"


def call(graph: Graph, target: Any, args: tuple[Any, ...], value: Any, name: str | None = None, **kwargs: Any) -> Node:
    """A new node of a graph that calls an operator, and has this example of its value."""
    node = graph.create_node("call_function", target, args, kwargs, name)
    node.meta["val"] = value
    return node


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


def storage_of(node: Node) -> int:
    """Identifies the memory of a node's value, or of the first of its values; 0 where it has none."""
    value = node.meta.get("val")
    value = value[0] if isinstance(value, (tuple, list)) and value else value
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return 0
    return int(value.untyped_storage()._cdata)


def argument(node: Node, name: str, default: Any = None) -> Any:
    """An operator's argument, passed by position or by name; ``default`` if its schema has no argument of this name."""
    return argument_of(node.target, node.args, node.kwargs, name, default)


def argument_of(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any], name: str, default: Any = None) -> Any:
    """As :func:`argument`, of a call of an operator."""
    arguments = target._schema.arguments
    names = [argument.name for argument in arguments]
    if name not in names:
        return default
    position = names.index(name)
    return args[position] if position < len(args) else kwargs.get(name, arguments[position].default_value)


def is_random(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether a call of an operator draws random numbers: attention and dropout draw none where their probability is 0."""
    if torch.Tag.nondeterministic_seeded not in getattr(target, "tags", ()):
        return False
    return not any(argument_of(target, args, kwargs, probability) == 0.0 for probability in ("dropout_p", "p"))


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
    if is_marked(node):
        yield "float32"
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


def concrete(value: Any, sizes: Mapping[Any, float]) -> Any:
    """A value of a trace, or several, with sizes in the symbols' place.

    Raises:
        Exception: Python raises, as for a quotient by zero, or sympy does.
    """
    if isinstance(value, (tuple, list)):
        return type(value)(concrete(item, sizes) for item in value)
    if isinstance(value, torch.Tensor):
        return torch.empty((), dtype=value.dtype, device="meta").expand([concrete(size, sizes) for size in value.shape])
    return number(value, sizes)


def number(value: Any, sizes: Mapping[Any, float]) -> Any:
    """A number of a trace, as Python computes it for these sizes; any other value is returned as it is.

    Raises:
        Exception: see :func:`concrete`.
    """
    if not isinstance(value, NUMBERS):
        return value
    expression = value.node.expr
    if not _HAS_ANALYSIS and isinstance(value, torch.SymFloat) and expression.is_integer and expression.has(sympy.Pow):
        raise CaptureError("this version of PyTorch takes powers of sizes for decimal numbers")
    if isinstance(expression, sympy.Basic):
        try:
            expression = sympy_interp(_PythonAnalysis, dict(sizes), expression)
        except (AssertionError, AttributeError):  # the analysis has no sines or logarithms; torch 2.1 has no analysis
            expression = expression.subs(dict(sizes))
    if isinstance(value, torch.SymBool):
        return bool(expression)
    return float(expression) if isinstance(value, torch.SymFloat) else int(expression)
