"""The answer of a call, as it is compared: numbers, types and the type of an error.

Everything here is numpy and plain Python: a mutation may have replaced functions of torch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch

#: Relative to the largest value of a tensor in half precision; two ways to compute it round differently.
HALF = 0.02
#: The same after the layers of a network.
HALF_OF_A_NETWORK = 0.1


class Answer(NamedTuple):
    """What a call gave: leaves of its result by path, or the type of the error that it raised."""

    leaves: dict[str, Any]
    error: type[BaseException] | None = None
    message: str = ""


def answer(call: Callable[[], Any]) -> Answer:
    """The answer of one call."""
    try:
        return Answer(dict(_leaves(call(), "")))
    except Exception as error:  # whatever a mutated forward raises
        return Answer({}, type(error), f"{type(error).__name__}: {error}"[:300])


def difference(got: Answer, want: Answer, tolerance: float = 1e-3) -> str:
    """How an answer differs from the one that is right, in words, or ""."""
    if want.error is not None or got.error is not None:
        if got.error is want.error:
            return ""
        return f"{got.message or 'an answer'} instead of {want.message or 'an answer'}"
    if got.leaves.keys() != want.leaves.keys():
        return f"the results are {sorted(got.leaves)} instead of {sorted(want.leaves)}"
    return next((words for path in want.leaves if (words := _unequal(got.leaves[path], want.leaves[path], path, tolerance))), "")


def _leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, torch.Tensor):
        yield path, (str(value.dtype), _array(value))
    elif isinstance(value, Mapping):
        yield f"{path}:", type(value).__name__
        for key, each in value.items():
            yield from _leaves(each, f"{path}.{key}")
    elif isinstance(value, (list, tuple)):
        yield f"{path}:", type(value).__name__
        for number, each in enumerate(value):
            yield from _leaves(each, f"{path}.{number}")
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        yield f"{path}:", type(value).__name__
        for field in dataclasses.fields(value):
            yield from _leaves(getattr(value, field.name), f"{path}.{field.name}")
    else:
        yield path, value if isinstance(value, (int, float, str, bool, type(None))) else type(value).__name__


def _array(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    tensor = tensor.detach()
    tensor = tensor.to(torch.float32) if tensor.dtype == torch.bfloat16 else tensor
    return np.array(tensor.numpy())


def _unequal(got: Any, want: Any, path: str, tolerance: float) -> str:
    where = f" at {path}" if path else ""
    if not (isinstance(want, tuple) and isinstance(got, tuple)):
        same = type(got) is type(want) and (got == want or (got != got and want != want))
        return "" if same else f"{got} instead of {want}{where}"
    (kind, array), (right_kind, right) = got, want
    if kind != right_kind or array.shape != right.shape:
        return f"{kind}{list(array.shape)} instead of {right_kind}{list(right.shape)}{where}"
    if right.dtype.kind not in "fc":
        return "" if np.array_equal(array, right) else f"{int((array != right).sum())} of {right.size} values differ{where}"
    finite = np.isfinite(right)
    if not np.array_equal(array[~finite], right[~finite], equal_nan=True):
        return f"differs in what is not finite{where}"
    if not finite.any():
        return ""
    scale = float(np.abs(right[finite]).max())
    error = float(np.abs(array[finite].astype(np.float64) - right[finite]).max())
    limit = max(tolerance, HALF if kind in ("torch.float16", "torch.bfloat16") else 0) * scale + 1e-6
    return "" if error <= limit else f"off by {error:.3g} of {scale:.3g}{where}"
