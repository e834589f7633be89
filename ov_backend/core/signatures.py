"""What a function says of its parameters."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any


def signature_of(forward: Callable[..., Any]) -> inspect.Signature:
    """The signature of a forward; of one that does not say what its parameters are, one that takes any arguments."""
    try:
        return inspect.signature(forward)
    except ValueError:  # it is written in C, as one of torch.jit is
        return inspect.signature(lambda *args, **kwargs: None)
