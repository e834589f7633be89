"""What a trace sets for all threads, set for the thread that traces: torch's flag that FX traces, and FX's patches.

While the flag is set, what Dynamo has compiled calls what it was compiled from, which the trace then sees; another thread's call
would do so too. Dynamo and Inductor mostly trace while they compile, where it is not looked at; ``openvino_fx`` traces at the
first call. FX also replaces functions of ``torch.nn.Module`` and of ``math``
by ones that look for its proxies, which ``make_fx`` never passes; what Dynamo guards in other threads would find them.
"""

from __future__ import annotations

import contextlib
import inspect
import threading
from collections.abc import Iterator
from types import FunctionType
from typing import Any

from torch._dynamo import config
from torch.fx import Graph, Tracer, _symbolic_trace
from torch.fx.experimental.proxy_tensor import PythonKeyTracer

from ov_backend.core import autocast_regions, tracing_lock

_FLAG = "_is_fx_tracing_flag"


class _OfThread(threading.local):
    """The flag: true in the threads that trace."""

    depth = 0

    def __bool__(self) -> bool:
        return self.depth > 0


class _NoPatcher(contextlib.nullcontext[None]):
    """In the place of FX's patcher."""

    def __enter__(self) -> Any:
        return self

    def patch_method(self, *_: Any, **__: Any) -> None:
        """Leave a method as it is."""


def _nothing(*_: Any) -> None:
    """In the place of a function that patches."""


_of_thread = _OfThread()
#: In the place of what the tracer uses to patch, in all supported versions of torch.
_WITHOUT_PATCHES: dict[str, Any] = {
    "_new_patcher": _NoPatcher,
    "_Patcher": _NoPatcher,
    "_patch_wrapped_functions": _nothing,
    "_autowrap_check": _nothing,
}


@contextlib.contextmanager
def flag_of_this_thread() -> Iterator[None]:
    """In this block ``make_fx`` patches nothing, and sets the flag for its own thread only; one thread at a time enters it.

    There it goes through what ``torch.compile`` has compiled, where Dynamo would raise.

    The nodes that it makes are marked (:mod:`ov_backend.core.autocast_regions`).
    """
    variables: dict[str, Any] = vars(_symbolic_trace)
    with tracing_lock.lock(), autocast_regions.marked(), config.patch(error_on_nested_fx_trace=False):
        before = variables[_FLAG], vars(PythonKeyTracer).get("trace")
        variables[_FLAG], PythonKeyTracer.trace = _of_thread, _trace
        try:
            yield
        finally:
            variables[_FLAG] = before[0]
            if before[1] is None:
                del PythonKeyTracer.trace


def _trace(self: Tracer, root: Any, concrete_args: dict[str, Any] | None = None) -> Graph:
    """:meth:`torch.fx.Tracer.trace` with global variables of its own, so that it sets no one else's flag."""
    method = inspect.unwrap(Tracer.trace)  # Dynamo wraps it
    variables = vars(_symbolic_trace) | (_WITHOUT_PATCHES if type(self) is PythonKeyTracer else {})
    own = FunctionType(method.__code__, variables, method.__name__, method.__defaults__, method.__closure__)
    _of_thread.depth += 1
    try:
        return own(self, root, concrete_args)
    finally:
        _of_thread.depth -= 1
