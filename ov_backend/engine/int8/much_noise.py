"""Steps with much noise are computed in the device's own precision, not in int8.

They decide what is in the picture, and later steps do not correct their errors.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from typing import Any

import torch

from ov_backend.core.signatures import signature_of
from ov_backend.guards.signature import Call

#: Parameters by which the forward of a network that denoises is told how much noise there is, counted from 0 to 1000.
_TIMESTEPS = frozenset({"timestep", "timesteps", "t"})
#: A step has much noise from here on: 3 or 4 of 20 steps; docs/dropped.md has what other bounds give.
MUCH_NOISE = 830

_active: ContextVar[bool] = ContextVar("much_noise", default=False)


def in_call(call: Call) -> bool:
    """Whether a call says by its timestep that there is much noise."""
    return _is_told((spec.name, tensor) for spec, tensor in zip(call.signature.tensors, call.tensors))


def in_arguments(forward: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """The same of a call that is not bound, because other code's forward may stand before the network's own one."""
    return _is_told([*zip(signature_of(forward).parameters, args), *kwargs.items()])


def _is_told(arguments: Iterable[tuple[str, Any]]) -> bool:
    steps = (value for name, value in arguments if name in _TIMESTEPS and isinstance(value, torch.Tensor) and value.numel())
    return any(float(step.max()) >= MUCH_NOISE for step in steps)


def active() -> bool:
    """Whether this thread computes a call with much noise."""
    return _active.get()


@contextlib.contextmanager
def context() -> Iterator[None]:
    """In this block, this thread computes a call with much noise."""
    token = _active.set(True)
    try:
        yield
    finally:
        _active.reset(token)
