"""Whether a deleted model is freed."""

from __future__ import annotations

import gc
import time
import weakref
from collections.abc import Callable
from typing import Any

from torch.multiprocessing.reductions import StorageWeakRef

from tests.helpers.small import Small

#: Seconds in which the thread that evicts must have run.
LIMIT_S = 20.0
ALIVE = {"module", "parameter", "memory of matrix", "memory of table"}


class Lives:
    """Whether a module, one of its parameters and the memory of its largest weights are still there."""

    def __init__(self, module: Small) -> None:
        self._objects = {"module": weakref.ref(module), "parameter": weakref.ref(module.matrix.weight)}
        self._memory = {name: StorageWeakRef(getattr(module, name).weight.untyped_storage()) for name in ("matrix", "table")}

    def left(self) -> set[str]:
        """What is not freed yet; all of :data:`ALIVE` while the module is in use."""
        gc.collect()
        objects = {name for name, ref in self._objects.items() if ref() is not None}
        return objects | {f"memory of {name}" for name, ref in self._memory.items() if not ref.expired()}


def eventually(holds: Callable[[], Any]) -> bool:
    """Whether something becomes true."""
    end = time.monotonic() + LIMIT_S
    while not holds() and time.monotonic() < end:
        time.sleep(0.01)
    return bool(holds())
