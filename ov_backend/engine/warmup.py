"""Warm-up: networks that are called in one are prepared for their calls, but compute nothing.

The caller of the networks (a pipeline, a WebUI) then determines by itself what they are called with, and no signature is
guessed. A warm-up holds for the thread that began it; other threads go on computing.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Callable, Iterator

_cancel: contextvars.ContextVar[Callable[[], bool] | None] = contextvars.ContextVar("cancel", default=None)


@contextlib.contextmanager
def warming_up(cancel: Callable[[], bool] = lambda: False) -> Iterator[None]:
    """In this block, networks are prepared and return zeros; they raise ``Interrupted`` once ``cancel()`` is true."""
    token = _cancel.set(cancel)
    try:
        yield
    finally:
        _cancel.reset(token)


def active() -> bool:
    """Whether this code runs in a warm-up."""
    return _cancel.get() is not None


def interruption() -> Callable[[], bool] | None:
    """What may end the warm-up; None outside of one."""
    return _cancel.get()
