"""Watches what Python code does to modules while it is traced, in the tracing thread alone; nothing is patched.

The interpreter tells a profiler of every call, that of ``torch.nn.Module.__setattr__`` among them. It does so per thread, so
that what other threads do to a module in the meantime is not mistaken for the trace's own doing.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from types import FrameType, TracebackType
from typing import Any

import torch

_SETATTR = torch.nn.Module.__setattr__.__code__
_ABSENT = object()


class Observer:
    """Notes which attributes of modules are set between ``with`` and its end, and can undo that."""

    def __init__(self) -> None:
        self._previous: Any = None
        #: Where an attribute was set, and what was there before the first time.
        self._before: dict[tuple[int, str], tuple[torch.nn.Module, Any]] = {}
        #: One function object: the interpreter compares it when it is set again.
        self._callback: Callable[[FrameType, str, Any], None] = self._on_event

    def __enter__(self) -> Observer:
        self._previous = sys.getprofile()
        sys.setprofile(self._callback)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        sys.setprofile(self._previous)

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Not watching in this block: torch's own code makes a hundred times as many calls as a module's."""
        watching = sys.getprofile()
        sys.setprofile(None)
        try:
            yield
        finally:
            sys.setprofile(watching)

    def undo(self) -> None:
        """Put back every attribute that was set."""
        for (_, name), (module, before) in self._before.items():
            table = table_of(module, name)
            if before is not _ABSENT:
                table[name] = before
            elif name in table:
                del table[name]

    def _on_event(self, frame: FrameType, event: str, argument: Any) -> None:
        if event == "call" and frame.f_code is _SETATTR:
            module, name = frame.f_locals["self"], frame.f_locals["name"]
            if type(module) is not torch.nn.Module:  # the tracer keeps the literals it meets on a bare Module; these must stay
                self._before.setdefault((id(module), name), (module, table_of(module, name).get(name, _ABSENT)))


def table_of(module: torch.nn.Module, name: str) -> dict[str, Any]:
    """Where a module keeps an attribute of this name."""
    own = vars(module)
    return next((own[table] for table in ("_parameters", "_buffers", "_modules") if name in own.get(table, ())), own)
