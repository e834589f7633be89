"""The part of a walk that describes global objects, such as a program's options: only the attributes that code reads count."""

from __future__ import annotations

import enum
import functools
import logging
import threading
import types
from collections.abc import Callable
from typing import Any

import torch

from ov_backend.core.errors import pass_on_signals
from ov_backend.guards.describe import INERT, SCALARS, TORCH_VALUES, attribute_or_none, is_of_package, keeps_state
from ov_backend.guards.packages import is_of_library
from ov_backend.guards.values import ValueWalk

_ABSENT = object()


class OptionWalk(ValueWalk):
    """Describes global objects by the attributes that code reads of them."""

    def _state(self, read: Callable[[], Any], path: str) -> None:
        """What the process answers now."""
        self.watch.content(read)
        self.description.begin(path)
        self._add(path, repr(read()))

    def _option(self, value: Any, attributes: list[str], path: str) -> None:
        """A global object, of which code reads some attributes, or which it passes on."""
        if isinstance(value, logging.Logger):
            self._option_of_logger(value, attributes, path)
        elif isinstance(value, INERT) or type(value).__module__ in self._host_modules:
            self._add(type(value).__qualname__)
        elif isinstance(value, threading.local):
            self._value(value, path)
        elif not attributes and is_of_library(value) and not keeps_state(value):
            self._add(type(value).__qualname__)
        else:
            self._kind_of(value)
            finder = getattr(type(value), "__getattr__", None)
            if isinstance(finder, types.FunctionType):
                self._function(finder, path)
            whole = not attributes or isinstance(self._static(value, attributes[0]), (property, functools.cached_property))
            if whole:
                self._value(value, path)
            if whole and finder is not None:  # its attributes stand anywhere: those that code names are asked for
                attributes = sorted(self._own_names)
            for name in attributes if whole else attributes[:1]:
                self._attribute_of(value, name, f"{path}.{name}")

    def _option_of_logger(self, value: logging.Logger, attributes: list[str], path: str) -> None:
        self._add("logger", value.name)
        member = attribute_or_none(value, attributes[0]) if attributes else None
        if attributes and isinstance(member, SCALARS):
            self._state(functools.partial(attribute_or_none, value, attributes[0]), f"{path}.{attributes[0]}")
        elif not isinstance(member, types.MethodType):
            self._value(member, path)

    def _kind_of(self, value: Any) -> None:
        """Its class, which may be exchanged, and the members of that class."""
        self.watch.type_of(value)
        self._add(type(value).__module__, type(value).__qualname__)
        if not is_of_package(type(value)):
            self._global_class(type(value))

    @staticmethod
    def _static(value: Any, name: str) -> Any:
        """What the classes of an object hold under a name."""
        return next((vars(base)[name] for base in type(value).__mro__ if name in vars(base)), None)

    def _attribute_of(self, value: Any, name: str, path: str) -> None:
        own = attribute_or_none(value, "__dict__")
        if isinstance(own, dict):
            self.watch.key(own, name)
        try:
            member = getattr(value, name)
        except Exception as error:  # the attribute's own code fails; the forward would fail as well
            pass_on_signals(error)
            self._add("no", name)
            self.watch.content(functools.partial(_kind_or_none, value, name))
            return
        self._add("option", name)
        if isinstance(member, types.MethodType):
            self._value(member.__func__, path)
            self._value(value, path)
        elif isinstance(member, (*SCALARS, *TORCH_VALUES, enum.Enum)):
            self.watch.content(functools.partial(_kind_or_none, value, name))
            self._value(member, path)
        elif isinstance(member, torch.Tensor):
            self._tensor(member, path, functools.partial(attribute_or_none, value, name))
        else:
            if attribute_or_none(value, name) is member:
                self.watch.attribute(value, name)
            self._value(member, path)


def _kind_or_none(value: Any, name: str) -> tuple[Any, Any]:
    """An attribute and its class, for 1 and True are equal."""
    member = attribute_or_none(value, name)
    return type(member), member
