"""Warm-up: networks called during a warm-up are compiled for their calls, but compute nothing.

The real caller of the networks (a pipeline, a WebUI) runs, so that no signature has to be guessed. A warm-up applies to the
thread that began it; other threads go on computing.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Callable, Iterator

_cancel: contextvars.ContextVar[Callable[[], bool] | None] = contextvars.ContextVar("cancel", default=None)


@contextlib.contextmanager
def warming_up(cancel: Callable[[], bool] = lambda: False) -> Iterator[None]:
    """In this block, networks are compiled and return zeros; they raise ``Interrupted`` once ``cancel()`` is true."""
    token = _cancel.set(cancel)
    try:
        yield
    finally:
        _cancel.reset(token)


def active() -> bool:
    """Whether a warm-up is active in this thread."""
    return _cancel.get() is not None


def interruption() -> Callable[[], bool] | None:
    """The ``cancel`` of the active warm-up; None if there is none."""
    return _cancel.get()
