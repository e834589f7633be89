"""The parts of a program in which PyTorch's autocast would keep float32, and the nodes that a trace makes there.

A program may switch the autocast of the CPU off for a part of itself, as for the angles of positions. Autocast is mostly off
during a trace, and nothing in the graph would say so; yet in the default precision the device computes products in bfloat16. So
each node that a trace makes in such a part is marked. The mark is a part of the graph's text, and so of its key.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.fx import GraphModule, Interpreter, Node
from torch.fx.experimental.proxy_tensor import PythonKeyTracer

#: The key of the mark among a node's metadata.
KEEPS_FLOAT32 = "keeps_float32"
#: Begins the names of marked nodes in an OpenVINO model.
PREFIX = "keeps_float32_"
#: What autocast computes in float32, and a decomposition with products.
_OF_FLOAT32 = frozenset({torch.ops.aten._euclidean_dist.default})


class _OfThread(threading.local):
    """The state of the program that this thread traces."""

    def __init__(self) -> None:
        #: For each of the autocasts of the CPU that it has begun: whether that is switched off.
        self.off: list[bool] = []
        #: How often it is told otherwise to keep float32.
        self.kept = 0


_of_thread = _OfThread()
_Autocast = torch.amp.autocast_mode.autocast


def is_marked(node: Node) -> bool:
    """Whether a node was made where autocast would keep float32."""
    return KEEPS_FLOAT32 in node.meta


def mark_as(node: Node, source: Node) -> None:
    """Mark a node that comes in the place of a marked one."""
    if is_marked(source):
        node.meta[KEEPS_FLOAT32] = True


def is_float32_kept() -> bool:
    """Whether a trace of this thread marks the nodes that it makes now."""
    return bool(_of_thread.kept or (_of_thread.off and _of_thread.off[-1]))


@contextlib.contextmanager
def keeping(is_kept: bool = True) -> Iterator[None]:
    """In this block a trace of this thread marks the nodes that it makes."""
    _of_thread.kept += is_kept
    try:
        yield
    finally:
        _of_thread.kept -= is_kept


class MarkingAgain(Interpreter):
    """Runs a graph during a trace, which marks what comes of marked nodes."""

    def run_node(self, n: Node) -> Any:
        """The value of a node."""
        with keeping(is_marked(n) or n.target in _OF_FLOAT32):
            return super().run_node(n)


def traced_again(gm: GraphModule) -> Callable[..., Any]:
    """What a trace is to run for a graph, so that no mark is lost."""
    return MarkingAgain(gm).run if any(map(is_marked, gm.graph.nodes)) else gm


@contextlib.contextmanager
def marked() -> Iterator[None]:
    """In this block traces mark nodes; it patches PyTorch, so the lock of traces has to be held."""
    before = {name: vars(_Autocast)[name] for name in ("__enter__", "__exit__")}
    own, off = vars(PythonKeyTracer).get("create_node"), _of_thread.off
    _Autocast.__enter__, _Autocast.__exit__ = _noted(**before)
    PythonKeyTracer.create_node = _marking(PythonKeyTracer.create_node)
    _of_thread.off = []  # another thread's trace may have seen one begin here, and not end
    try:
        yield
    finally:
        _of_thread.off = off
        for name, function in before.items():
            setattr(_Autocast, name, function)
        if own is None:
            del PythonKeyTracer.create_node
        else:
            PythonKeyTracer.create_node = own


def _noted(__enter__: Callable[..., Any], __exit__: Callable[..., Any]) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """The methods with which an autocast begins and ends, which also note what it does to the CPU's."""

    def begin(self: Any) -> Any:
        result = __enter__(self)
        if self.device == "cpu":
            _of_thread.off.append(not self._enabled)
        return result

    def end(self: Any, *error: Any) -> Any:
        if self.device == "cpu" and _of_thread.off:
            _of_thread.off.pop()
        return __exit__(self, *error)

    return begin, end


def _marking(create: Callable[..., Node]) -> Callable[..., Node]:
    """A tracer's method that makes a node, which also marks it."""

    def create_node(self: Any, *args: Any, **kwargs: Any) -> Node:
        node = create(self, *args, **kwargs)
        if is_float32_kept():
            node.meta[KEEPS_FLOAT32] = True
        return node

    return create_node
