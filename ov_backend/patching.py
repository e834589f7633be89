"""Put another function in an attribute's place, and take it out again: every swap has its undo in this file."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

import torch

from ov_backend.errors import PatchError

_ABSENT = object()

#: Attribute that marks a function put in place by :mod:`ov_backend.patching`.
PATCHED = "_ov_backend_patched"


def is_patched(value: object) -> bool:
    """Whether a function is one that :mod:`ov_backend.patching` put in place: no part of anybody's code."""
    return hasattr(value, PATCHED)


def unwrap(value: Any) -> Any:
    """What stands in a place as far as anybody else is concerned: the function below ours, if ours is there."""
    while isinstance(value, types.FunctionType) and is_patched(value):
        value = value.__wrapped__  # type: ignore[attr-defined]
    return value


class Patch:
    """One attribute of one object, replaced until :meth:`undo`.

    Args:
        owner: an instance or a class.
        name: the attribute.
        make: makes the replacement from the original (what ``getattr`` finds now).

    Raises:
        PatchError: the attribute is already swapped.
    """

    def __init__(self, owner: Any, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        self._owner, self._name = owner, name
        self._own = vars(owner).get(name, _ABSENT)
        if is_patched(self._own):
            raise PatchError(f"{_named(owner)}.{name} is already accelerated; restore it before accelerating it again.")
        self.original: Callable[..., Any] = getattr(owner, name)
        made = make(self.original)
        self._active = True

        @functools.wraps(self.original)
        def replacement(*args: Any, **kwargs: Any) -> Any:
            # whoever took hold of this function while it was in place may call it long after
            return made(*args, **kwargs) if self._active else self.original(*args, **kwargs)

        setattr(replacement, PATCHED, True)
        self._replacement = replacement
        setattr(owner, name, replacement)

    def undo(self) -> bool:
        """Put the exact original back; False if somebody else has replaced it since (unwrap is then left alone)."""
        if not self._active:
            return True
        self._active = False
        if vars(self._owner).get(self._name, _ABSENT) is not self._replacement:
            return False
        if self._own is _ABSENT:
            delattr(self._owner, self._name)
        else:
            setattr(self._owner, self._name, self._own)
        return True


class Unshadow:
    """An attribute taken off one instance, so that its class's is reached, until :meth:`undo`."""

    def __init__(self, owner: Any, name: str) -> None:
        self._owner, self._name = owner, name
        self._own = vars(owner).pop(name)

    def undo(self) -> bool:
        """Put the exact attribute back; False if somebody else has put one there since (unwrap is then left alone)."""
        return vars(self._owner).setdefault(self._name, self._own) is self._own


def patch_forward(module: torch.nn.Module, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Patch:
    """Replace one module instance's forward; its class and all other instances stay as they are."""
    return Patch(module, "forward", make)


def _named(owner: Any) -> str:
    return owner.__name__ if isinstance(owner, type) else type(owner).__name__
