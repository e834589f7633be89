"""Torch's flag that FX traces, set for the thread that traces instead of for all of them.

While it is set, calling what Dynamo has compiled raises "Detected that you are using FX to symbolically trace a dynamo-optimized
function". Torch sets it in a global variable, so another thread's call would raise too. Dynamo and Inductor mostly trace while
they compile, where it is not looked at; ``openvino_fx`` traces at the first call.
"""

from __future__ import annotations

import contextlib
import inspect
import threading
from collections.abc import Iterator
from types import FunctionType
from typing import Any

from torch.fx import Graph, Tracer, _symbolic_trace
from torch.fx.experimental.proxy_tensor import PythonKeyTracer

_FLAG = "_is_fx_tracing_flag"


class _OfThread(threading.local):
    """The flag: true in the threads that trace."""

    depth = 0

    def __bool__(self) -> bool:
        return self.depth > 0


_of_thread = _OfThread()
_lock = threading.Lock()
_users = 0
_before: Any = False


@contextlib.contextmanager
def flag_of_this_thread() -> Iterator[None]:
    """In this block ``make_fx`` sets the flag for its own thread only. Blocks of several threads may overlap."""
    global _users, _before
    variables: dict[str, Any] = vars(_symbolic_trace)
    with _lock:
        if not _users:
            _before, variables[_FLAG] = variables[_FLAG], _of_thread
            PythonKeyTracer.trace = _trace
        _users += 1
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if not _users:
                variables[_FLAG] = _before
                del PythonKeyTracer.trace


def _trace(self: Tracer, root: Any, concrete_args: dict[str, Any] | None = None) -> Graph:
    """:meth:`torch.fx.Tracer.trace` with global variables of its own, so that it sets no one else's flag."""
    method = inspect.unwrap(Tracer.trace)  # Dynamo wraps it
    own = FunctionType(method.__code__, dict(vars(_symbolic_trace)), method.__name__, method.__defaults__, method.__closure__)
    _of_thread.depth += 1
    try:
        return own(self, root, concrete_args)
    finally:
        _of_thread.depth -= 1
