"""What code may ask of autocast and a trace would answer otherwise.

A trace runs in a thread of its own, where nothing of autocast was set, under the caller's autocast of the CPU if that is on.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from ov_backend.core.errors import pass_on_signals


def _is_known(device: str) -> bool:
    """Whether this PyTorch has an autocast of a device; 2.4 raises for those that it does not know."""
    try:
        torch.is_autocast_enabled(device)
    except RuntimeError as error:
        pass_on_signals(error)
        return False
    except TypeError:  # before 2.4, where it takes no device
        return True
    return True


_DEVICES = tuple(filter(_is_known, ("cuda", "xpu", "mps", "xla", "hpu", "ipu", "mtia", "maia", "privateuseone")))
_DISABLED = [False] * len(_DEVICES)
_NOTHING = frozenset[str]()
#: Stands in the code by which PyTorch begins an autocast, which takes the dtype of its device if it is told none.
BEGINS = frozenset({"fast_dtype"})
#: Names by which code asks for the CPU's dtype.
_OF_CPU = BEGINS | {"get_autocast_dtype", "get_autocast_cpu_dtype"}
#: Names by which code asks for autocast of other devices.
_OF_OTHERS = frozenset({"get_autocast_dtype", "is_autocast_enabled", "_is_any_autocast_enabled", "get_autocast_gpu_dtype"}).union(
    *({f"is_autocast_{device}_enabled", f"get_autocast_{device}_dtype"} for device in _DEVICES)
)
#: The functions of these names, by their ``id``.
ASKS_AUTOCAST = {
    id(getattr(place, name)): name
    for place in (torch, torch._C)
    for name in _OF_OTHERS | _OF_CPU
    if hasattr(place, name)
}
_BY_NAME = [
    getattr(torch, name)  # PyTorch before 2.4 has a function for each device
    for name in sorted(_OF_OTHERS)
    if hasattr(torch, name) and not hasattr(torch, "get_autocast_dtype")
]


def _of_others() -> list[Any]:
    if _BY_NAME:
        return [ask() for ask in _BY_NAME]
    enabled = map(torch.is_autocast_enabled, _DEVICES) if torch._C._is_any_autocast_enabled() else _DISABLED
    return [*enabled, *map(torch.get_autocast_dtype, _DEVICES)]


with ThreadPoolExecutor(1) as _new_thread:
    _OTHERS, _CPU = _new_thread.submit(lambda: (_of_others(), torch.get_autocast_cpu_dtype())).result()


if hasattr(torch, "get_autocast_dtype"):

    def of_cpu() -> torch.dtype | None:
        """The dtype of the CPU's autocast in this thread, None if it is off."""
        return torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else None

    def _dtype_of_cpu() -> torch.dtype:
        return torch.get_autocast_dtype("cpu")

else:  # before PyTorch 2.4; since then these warn at every call, which takes longer than all the rest

    def of_cpu() -> torch.dtype | None:
        """The dtype of the CPU's autocast in this thread, None if it is off."""
        return torch.get_autocast_cpu_dtype() if torch.is_autocast_cpu_enabled() else None

    _dtype_of_cpu = torch.get_autocast_cpu_dtype


class _OfThread(threading.local):
    """How many autocasts, of whatever device, are not the program's: those around an accelerated call."""

    around: int | None = None


_of_thread = _OfThread()


def _depth() -> int:
    """How many autocasts this thread is inside of."""
    depth = 1
    try:
        depth = torch.autocast_increment_nesting()
    finally:  # also where the handler of a signal raises in between
        torch.autocast_decrement_nesting()
    return depth - 1


def is_around() -> bool:
    """Whether there are autocasts around this call, and no call further up the stack has noted them."""
    return _of_thread.around is None and _depth() > 0


@contextlib.contextmanager
def noted() -> Iterator[None]:
    """In this block, the autocasts around it are not the program's."""
    before = _of_thread.around
    _of_thread.around = _depth() if before is None else before
    try:
        yield
    finally:
        _of_thread.around = before


def of_program() -> torch.dtype | None:
    """As :func:`of_cpu`, but float32 where the program has switched autocast off.

    PyTorch counts the autocasts of all devices together.
    """
    dtype = of_cpu()
    if dtype is not None or torch.is_autocast_enabled():
        return dtype
    return torch.float32 if _depth() > (_of_thread.around or 0) else None


def like(dtype: torch.dtype | None) -> torch.autocast:
    """The autocast of the CPU of which :func:`of_program` has said a dtype, or one that is switched off."""
    casts = dtype not in (None, torch.float32)
    return torch.autocast("cpu", dtype=dtype if casts else torch.bfloat16, enabled=casts)


def answered_otherwise() -> frozenset[str]:
    """The names of the questions that a trace would not answer as this thread does; mostly none."""
    found = _NOTHING if _of_others() == _OTHERS else _OF_OTHERS
    if _dtype_of_cpu() is _CPU or of_cpu() is not None:
        return found
    return found | _OF_CPU
