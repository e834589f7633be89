"""What a mutation is, and single changes of single things, each with its undo."""

from __future__ import annotations

import contextvars
import types
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from tests.soundness import values
from tests.soundness.weights import Undo


class Mutation(NamedTuple):
    """One change of one thing.

    Attributes:
        name: what is changed and how; the same in every process.
        kind: what kind of thing it is.
        apply: changes it, and returns the undo.
        loose: results in half precision are as right as eager's, but not equal.
        sparse: writes one element in a way that counts no version; docs/staleness.md says when that is found.
    """

    name: str
    kind: str
    apply: Callable[[], Undo]
    loose: bool = False
    sparse: bool = False


class Place(NamedTuple):
    """Where a value stands."""

    path: str
    kind: str
    read: Callable[[], Any]
    write: Callable[[Any], None]


def slots(base: type) -> tuple[str, ...]:
    """The attributes that a class keeps in slots."""
    given = vars(base).get("__slots__", ())
    return (given,) if isinstance(given, str) else tuple(given)


def class_value(base: type, name: str) -> Any:
    """What stands in a class, without the effect of descriptors."""
    return vars(base)[name]


def is_descriptor(member: Any) -> bool:
    """Whether a class member is a descriptor of its own kind."""
    return hasattr(type(member), "__set__") or (hasattr(type(member), "__get__") and not isinstance(member, types.FunctionType))


def exchange(place: Place, other: Any) -> Undo:
    """Put another value at a place."""
    old = place.read()
    place.write(other)
    return lambda: place.write(old)


def changed_copy(place: Place) -> Undo:
    """Put a copy with one attribute changed at a place."""
    old = place.read()
    other = values.changed_copy(old)
    place.write(old if other is None else other)
    return lambda: place.write(old)


LIST_CHANGES: dict[str, Callable[[Any], None]] = {
    "one more": lambda value: value.append(value[0] if value else values.SENTINEL),
    "without the last": lambda value: value.pop(),
    "reversed": lambda value: value.reverse(),
}


def list_change(value: Any, change: Callable[[Any], None]) -> Undo:
    """Change a list."""
    before = list(value)
    change(value)

    def undo() -> None:
        value.clear()
        value.extend(before)

    return undo


def remove_key(value: dict[Any, Any], key: Any) -> Undo:
    """Remove a key; its order is restored."""
    before = list(dict.items(value))
    dict.pop(value, key)

    def undo() -> None:
        dict.clear(value)
        for name, item in before:
            dict.__setitem__(value, name, item)

    return undo


def add_key(value: dict[Any, Any]) -> Undo:
    """Add a key."""
    dict.__setitem__(value, "an added key", 1.5)
    return lambda: dict.pop(value, "an added key", None)


def array(value: np.ndarray[Any, Any], path: str) -> Iterator[Mutation]:
    """Write one element of an array."""
    def apply() -> Undo:
        before = value.copy()
        value.reshape(-1)[value.size // 2] = (
            value.reshape(-1)[0] if value.dtype == object else value.reshape(-1)[value.size // 2] * 2 + 1
        )
        return lambda: np.copyto(value, before)

    if value.size and value.dtype.kind in "iufO" and value.flags.writeable:
        yield Mutation(f"{path}: one element", "array", apply)


def context_variable(variable: contextvars.ContextVar[Any]) -> Undo:
    """Set a context variable, to None if there is no other value of its kind."""
    token = variable.set(next((value for _, value in values.others(variable.get())), None))
    return lambda: variable.reset(token)


def set_default(function: types.FunctionType, number: int, value: Any) -> None:
    """Exchange one default argument."""
    defaults = list(function.__defaults__ or ())
    defaults[number] = value
    function.__defaults__ = tuple(defaults)


def other_code(function: types.FunctionType) -> Undo:
    """The function's code with its first float, int or string constant changed, as an editor or a reload changes it."""
    old = function.__code__
    constants = list(old.co_consts)
    for number, constant in enumerate(constants):
        if number and isinstance(constant, (int, float, str)) and not isinstance(constant, bool):
            constants[number] = next(values.others(constant))[1]
            break
    function.__code__ = old.replace(co_consts=tuple(constants))

    def undo() -> None:
        function.__code__ = old

    return undo


def on_instance(value: Any, table: dict[str, Any], name: str) -> Undo:
    """Put a method on the instance, as extensions do."""
    table[name] = values.scaled(getattr(value, name))
    return lambda: table.pop(name, None)
