"""A rehearsal: networks called during one get ready for their calls, but compute nothing.

Whoever calls the networks (a pipeline, a WebUI) then determines by itself what they are called with, and nobody has to
guess signatures. It holds for the thread that rehearses; others go on computing.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Callable, Iterator, Sequence

import torch

from ov_backend.runtime.program import CompiledProgram

_cancel: contextvars.ContextVar[Callable[[], bool] | None] = contextvars.ContextVar("cancel", default=None)


@contextlib.contextmanager
def rehearsing(cancel: Callable[[], bool] = lambda: False) -> Iterator[None]:
    """In this block, networks get ready and return zeros; they raise ``Interrupted`` once ``cancel()`` is true."""
    token = _cancel.set(cancel)
    try:
        yield
    finally:
        _cancel.reset(token)


def interruption() -> Callable[[], bool] | None:
    """What may end the rehearsal; None outside of one."""
    return _cancel.get()


def blank(program: CompiledProgram, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor] | None:
    """What ``program`` returns in a rehearsal, None outside of one. With operators left to PyTorch it computes."""
    if _cancel.get() is None:
        return None
    part = program.parts.get("")
    return part.blank(tensors) if part is not None and len(program.parts) == 1 else program(tensors)
