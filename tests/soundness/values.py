"""Other values in place of a value: numbers, strings, enums, containers, arrays, functions, objects."""

from __future__ import annotations

import copy
import enum
import functools
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch


class _Sentinel:
    """A value that no forward expects."""

    def __repr__(self) -> str:
        return "<sentinel>"


SENTINEL = _Sentinel()


def others(value: Any) -> Iterator[tuple[str, Any]]:
    """Values that may stand in place of a value, each with a word for it."""
    if isinstance(value, bool):
        yield "flip", not value
    elif isinstance(value, enum.Enum):
        yield from _enum(value)
    elif isinstance(value, int):
        yield "one more", value + 1
        yield "negative", -value
    elif isinstance(value, float):
        yield "larger", value * 1.5 + 0.25
        yield "slightly other", value + 1e-2
    elif isinstance(value, complex):
        yield "larger", value * 2
    elif isinstance(value, str):
        yield "longer", f"{value}_x"
        yield "empty", ""
    elif value is None:
        yield "a number", 1.5
        yield "true", True
    elif isinstance(value, np.generic):
        yield "larger", type(value)(value * 2 + 1) if value.dtype.kind in "iuf" else value
    elif isinstance(value, tuple):
        yield from _tuple(value)
    elif isinstance(value, (set, frozenset)):
        yield "more", type(value)([*value, SENTINEL])
        yield "empty", type(value)()
    elif isinstance(value, torch.dtype):
        yield "float64", torch.float64 if value != torch.float64 else torch.float32
    elif isinstance(value, functools.partial):
        yield from _partial(value)
    elif isinstance(value, (range, slice, type, types.ModuleType, torch.Tensor, np.ndarray, list, dict)):
        return
    elif callable(value) and not isinstance(value, torch.nn.Module) and not _is_plain(value):
        yield "wrapped", scaled(value)
        yield "replaced", replacement(value)


def _enum(value: enum.Enum) -> Iterator[tuple[str, Any]]:
    members = list(type(value))
    other = next((member for member in members if member is not value and member.value != value.value), None)
    if other is not None:
        yield "another member", other


def _tuple(value: tuple[Any, ...]) -> Iterator[tuple[str, Any]]:
    make = value._make if hasattr(value, "_make") else type(value) if type(value) is torch.Size else tuple
    for index, item in enumerate(value[:4]):
        for how, other in others(item):
            yield f"[{index}] {how}", make([*value[:index], other, *value[index + 1 :]])
    if value:
        yield "without the last", tuple(value[:-1])


def _partial(value: functools.partial[Any]) -> Iterator[tuple[str, Any]]:
    for name, item in value.keywords.items():
        for how, other in others(item):
            yield f"{name} {how}", functools.partial(value.func, *value.args, **{**value.keywords, name: other})
    yield "wrapped", functools.partial(scaled(value.func), *value.args, **value.keywords)


def _is_plain(value: Any) -> bool:
    """Whether a callable is an object with a state, rather than a function or a method."""
    return hasattr(value, "__dict__") and not isinstance(value, (types.FunctionType, types.MethodType, types.BuiltinFunctionType))


def scaled(function: Callable[..., Any], by: float = 1.25) -> Callable[..., Any]:
    """A function around another, as extensions put it there: results that are tensors or floats are scaled."""

    def patched(*args: Any, **kwargs: Any) -> Any:
        return _times(function(*args, **kwargs), by)

    return patched


def replacement(function: Callable[..., Any]) -> Callable[..., Any]:
    """As :func:`scaled`, under the other function's name and with another strength."""

    @functools.wraps(function)
    def patched(*args: Any, **kwargs: Any) -> Any:
        return _times(function(*args, **kwargs), 0.75)

    return patched


def _times(value: Any, by: float) -> Any:
    if isinstance(value, torch.Tensor):
        return value.mul(by) if value.is_floating_point() else value
    if isinstance(value, float):
        return value * by
    if isinstance(value, tuple) and type(value) is tuple:
        return tuple(_times(each, by) for each in value)
    return value


def changed_copy(value: Any) -> Any:
    """A shallow copy of an object with one number, string or switch changed; None where it has none."""
    try:
        other = copy.copy(value)
        if other is value:
            return None
        for name, item in sorted(vars(other).items()):
            if isinstance(item, (bool, int, float, str)):
                vars(other)[name] = next(others(item))[1]
                return other
    except Exception:  # an object that cannot be copied, or whose class has its own ideas
        return None
    return None
