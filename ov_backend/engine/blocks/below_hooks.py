"""The forward of a module's class below the wrappers that other code has put on the instance, and where they hold it.

The hooks of accelerate and diffusers, which move weights, replace a module's ``forward`` by a function that calls the earlier
one. What they do must be done at every call, so they run in PyTorch as they stand, and only what they call is replaced.
"""

from __future__ import annotations

import types
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial, wraps
from typing import Any, NamedTuple

import torch

from ov_backend.core.patching import PATCHED, Patch, class_member, is_patched, unwrap
from ov_backend.guards.reads import names_in
from ov_backend.guards.versions import module_of

#: A search that has met this many objects ends: hooks lie close to each other.
_MAX_OBJECTS = 256


class CellPatch:
    """Replaces the function in a variable that functions share by what ``make`` makes of it, until :meth:`undo`."""

    def __init__(self, cell: types.CellType, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        self._cell, self.original = cell, cell.cell_contents
        patched = make(self.original)
        self._active = True

        @wraps(self.original)
        def call(*args: Any, **kwargs: Any) -> Any:
            return (patched if self._active else self.original)(*args, **kwargs)

        setattr(call, PATCHED, True)
        self._replacement = cell.cell_contents = call

    def undo(self) -> bool:
        """Restore the original; False if other code has replaced it since, which is then left as it is."""
        self._active = False
        if self._cell.cell_contents is self._replacement:
            self._cell.cell_contents = self.original
        return self._cell.cell_contents is self.original


class Place(NamedTuple):
    """Where a wrapper holds the forward that it calls: an attribute of an object, or a variable of a function around it."""

    owner: Any
    name: str

    def patch(self, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Patch | CellPatch:
        """Replace the forward here, until the patch is undone."""
        if isinstance(self.owner, types.CellType):
            return CellPatch(self.owner, make)
        return Patch(self.owner, self.name, make)


def is_wrapped(module: torch.nn.Module) -> bool:
    """Whether something stands on a module in the place of its class's forward that is not this package's."""
    forward = vars(module).get("forward")
    return forward is not None and not is_patched(forward)


def place_below(module: torch.nn.Module) -> Place | None:
    """Where the wrappers on a module hold its class's forward; None where there are none, or where they do not hold it."""
    if not is_wrapped(module) or _is_of_class(vars(module)["forward"], module):
        return None
    waiting, met = deque([vars(module)["forward"]]), set[int]()
    while waiting and len(met) < _MAX_OBJECTS:
        value = waiting.popleft()
        if id(value) in met:
            continue
        met.add(id(value))
        for place, held in _held_by(value, module):
            if place is not None and _is_of_class(held, module):
                return place
            waiting.append(held)
    return None


def _is_of_class(value: Any, module: torch.nn.Module) -> bool:
    """Whether a value is the forward of a module's class, bound to the module."""
    if not isinstance(value, types.MethodType) or value.__self__ is not module:
        return False
    return unwrap(value.__func__) is unwrap(class_member(type(module), "forward"))


def _held_by(value: Any, module: torch.nn.Module) -> Iterator[tuple[Place | None, Any]]:
    """What a wrapper, or an object of one, may call: the values, with the places in which they can be replaced."""
    if isinstance(value, partial):
        yield from ((None, each) for each in (value.func, *value.args, *value.keywords.values()))
    elif isinstance(value, types.MethodType):
        yield from ((None, each) for each in (value.__func__, value.__self__))
    elif isinstance(value, types.FunctionType):
        if module_of(value).partition(".")[0] != "torch":  # other compilers keep what they have compiled
            yield from _read_by(value, module)
    elif isinstance(value, (list, tuple)):
        yield from ((None, each) for each in value)
    elif isinstance(value, dict):
        yield from ((None, each) for each in value.values())
    elif not isinstance(value, (torch.nn.Module, torch.Tensor, type, types.ModuleType)):
        yield from ((Place(value, name), held) for name, held in dict(getattr(value, "__dict__", {})).items())


def _read_by(function: types.FunctionType, module: torch.nn.Module) -> Iterator[tuple[Place | None, Any]]:
    """What a function reads from the functions around it, and of the module's attributes by their names."""
    for cell in function.__closure__ or ():
        try:
            yield Place(cell, "cell_contents"), cell.cell_contents
        except ValueError:  # it is empty
            continue
    names = names_in(function.__code__)
    attributes = dict(vars(module))
    yield from ((Place(module, name), held) for name, held in attributes.items() if name in names and name != "forward")
