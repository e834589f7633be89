"""The patch of ``torch.nn.Module.__call__``, at which the calls of a network's blocks are met."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import torch

from ov_backend.core.patching import Patch, is_patched
from ov_backend.core.tracing_lock import LOCK
from ov_backend.engine import worker


class CallsPatch:
    """The patch of all modules' calls, until :meth:`undo`.

    Where Dynamo compiles, PyTorch patches the same function: neither patch must end within the other.
    """

    def __init__(self, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        while True:
            with LOCK:
                if not is_patched(torch.nn.Module.__call__):  # else the last one's undo waits for the same lock
                    self._patch = Patch(torch.nn.Module, "__call__", make)
                    return
            time.sleep(worker.POLL_S)

    def undo(self) -> bool:
        """Restore PyTorch's own function; while a network is being traced that happens as soon as the trace has ended."""
        if not LOCK.acquire(timeout=worker.POLL_S):
            threading.Thread(target=self._undo_later, name="ov_backend-undo", daemon=True).start()
            return True
        try:
            return self._patch.undo()
        finally:
            LOCK.release()

    def _undo_later(self) -> None:
        with LOCK:
            self._patch.undo()
