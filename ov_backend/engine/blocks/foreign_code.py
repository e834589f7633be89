"""The code of forwards that are not a module's own: what tells one of them from another."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import partial
from typing import Any

import torch


def foreign_forwards(module: torch.nn.Module) -> frozenset[Hashable]:
    """The code of the forwards that stand on the instances of a module and those inside it, in the place of their classes'."""
    forwards = (vars(each).get("forward") for each in module.modules())
    return frozenset(_code_of(forward) for forward in forwards if forward is not None)


def _code_of(function: Any) -> Any:
    """The code of a function, or of what it wraps; the class of another callable."""
    function = _inner(function)
    function = getattr(function, "__func__", function)
    return getattr(function, "__code__", type(function))


def name_of(function: Callable[..., Any]) -> str:
    """Names a function, or what it wraps, by its place in the code; other processes give it the same name."""
    function = _inner(function)
    place = function if hasattr(function, "__qualname__") else type(function)
    return f"{place.__module__}.{place.__qualname__}"


def _inner(function: Any) -> Any:
    while isinstance(function, partial):
        function = function.func
    return function
