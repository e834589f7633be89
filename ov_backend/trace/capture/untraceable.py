"""Why a trace over fake tensors failed, in a sentence."""

from __future__ import annotations

import traceback

import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException

from ov_backend.core.errors import first_line


def why_untraceable(error: Exception) -> str:
    """What a trace cannot follow, by the exception that it raised."""
    if isinstance(error, DynamicOutputShapeException):
        why = f"the size of a result depends on values ({error.func})"
    elif isinstance(error, DataDependentOutputException):
        why = f"it asks for a value of a tensor, as .item() and `if` do ({error.func})"
    elif any(frame.f_code is torch.nn.Module._apply.__code__ for frame, _ in traceback.walk_tb(error.__traceback__)):
        why = "while it runs, it moves weights or casts them to another dtype, as hooks for offloading and layerwise casting do"
    else:
        why = f"{type(error).__name__}: {first_line(error)}"
    return f"it cannot be traced: {why}"
