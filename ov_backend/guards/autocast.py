"""PyTorch's autocast in the caller's thread, which a trace takes over.

A trace runs in a thread of its own, where nothing of autocast was set.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import torch

#: Devices beside the CPU whose autocast a program may switch on, as older code does for cuda on whatever machine.
_OTHERS = ("cuda", "xpu")

_Ways = list[tuple[Callable[[], Any], Callable[[Any], None]]]


def _ways(verb: str, what: str, devices: Iterable[str]) -> _Ways:
    """How to ask for one thing that autocast keeps for each of these devices, and how to set it."""
    if hasattr(torch, "get_autocast_dtype"):
        ask, put = getattr(torch, f"{verb}_autocast_{what}"), getattr(torch, f"set_autocast_{what}")
        return [(partial(ask, device), partial(put, device)) for device in devices]
    names = [f"autocast_{device}_{what}".replace("cuda_enabled", "enabled").replace("cuda", "gpu") for device in devices]
    known = [name for name in names if hasattr(torch, f"{verb}_{name}")]
    return [(getattr(torch, f"{verb}_{name}"), getattr(torch, f"set_{name}")) for name in known]


_of_cpu = [ask for verb, what in (("is", "enabled"), ("get", "dtype")) for ask, _ in _ways(verb, what, ("cpu",))]
_DTYPES, _SWITCHES = _ways("get", "dtype", ("cpu", *_OTHERS)), _ways("is", "enabled", _OTHERS)


def state() -> list[Any]:
    """All that this thread keeps of autocast, apart from whether the CPU's is on."""
    return [ask() for ask, _ in _DTYPES + _SWITCHES]


with ThreadPoolExecutor(1) as _new_thread:
    #: What a thread begins with.
    OF_NEW_THREAD = _new_thread.submit(state).result()


@contextlib.contextmanager
def taken_over(of_caller: list[Any]) -> Iterator[None]:
    """In this block, this thread answers as another one, of which :func:`state` has told."""
    before = state()
    try:
        for (_, put), value in zip(_DTYPES + _SWITCHES, of_caller):
            put(value)
        yield
    finally:
        for (_, put), value in zip(_DTYPES + _SWITCHES, before):
            put(value)


def of_cpu() -> torch.dtype | None:
    """The dtype of the CPU's autocast in this thread, None if it is off."""
    return _of_cpu[1]() if _of_cpu[0]() else None


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
