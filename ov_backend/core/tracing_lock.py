"""The lock under which PyTorch traces: Dynamo's own.

A trace sets global variables of PyTorch: the table of decompositions, the current tracer, how code is generated. Dynamo holds a
lock while it compiles, and looks for nobody else; so each of this package's traces takes that lock.
"""

from __future__ import annotations

import contextlib
import contextvars
import threading

from torch._dynamo import convert_frame, eval_frame

#: It belongs to a thread, which may take it again. Before torch 2.2 it stands in another module.
LOCK: threading.RLock = getattr(convert_frame, "compile_lock", None) or eval_frame.compile_lock

_lent: contextvars.ContextVar[bool] = contextvars.ContextVar("lent", default=False)


def lock() -> contextlib.AbstractContextManager[object]:
    """The lock, to be held around a trace; nothing in a context to which the holder has lent it."""
    return contextlib.nullcontext() if _lent.get() else LOCK


def is_held() -> bool:
    """Whether this thread holds the lock: Dynamo is compiling further up its stack, or a trace is running there."""
    return bool(LOCK._is_owned())  # type: ignore[attr-defined]  # as threading.Condition asks


def lend(context: contextvars.Context) -> None:
    """What runs in this context may trace: the thread that holds the lock waits for it."""
    context.run(_lent.set, True)
