"""Steps with much noise are computed in the device's own precision, not in int8.

They decide what is in the picture, and later steps do not correct their errors.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar

from ov_backend.guards.signature import Call

#: Parameters by which the forward of a network that denoises is told how much noise there is, counted from 0 to 1000.
_TIMESTEPS = frozenset({"timestep", "timesteps", "t"})
#: A step has much noise from here on: 3 of 20 steps, whether a sampler spaces them evenly or as Karras does.
MUCH_NOISE = 880

_active: ContextVar[bool] = ContextVar("much_noise", default=False)


def in_call(call: Call) -> bool:
    """Whether a call says by its timestep that there is much noise."""
    steps = (tensor for spec, tensor in zip(call.signature.tensors, call.tensors) if spec.name in _TIMESTEPS and tensor.numel())
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
