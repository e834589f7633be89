"""Why a trace over fake tensors failed, in a sentence."""

from __future__ import annotations

from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException

from ov_backend.errors import first_line


def why_untraceable(error: Exception) -> str:
    """What a trace cannot follow, by the exception that it raised."""
    if isinstance(error, DynamicOutputShapeException):
        why = f"the size of a result depends on values ({error.func})"
    elif isinstance(error, DataDependentOutputException):
        why = f"it asks for a value of a tensor, as .item() and `if` do ({error.func})"
    else:
        why = f"{type(error).__name__}: {first_line(error)}"
    return f"it cannot be traced: {why}"
