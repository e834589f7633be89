"""The part of a walk that describes values: numbers, containers, arrays, plain objects; what it cannot describe is opaque."""

from __future__ import annotations

import abc
import argparse
import collections
import contextlib
import contextvars
import dataclasses
import enum
import functools
import inspect
import logging
import re
import types
import weakref
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from ov_backend.core.errors import pass_on_signals
from ov_backend.guards.describe import (
    BUFFERS,
    BUILTINS,
    BY_TEXT,
    GENERATORS,
    INERT,
    SCALARS,
    STREAMS,
    TORCH_VALUES,
    UNSET,
    UNWATCHED,
    array_digest,
    attribute_or,
    attribute_or_none,
    held_by,
    item_or_none,
    keeps_state,
    number_of,
    own_kind,
    registered_with,
    slots_of,
    text_of_key,
    which_is_held_by,
)
from ov_backend.guards.notes import Notes, is_ours
from ov_backend.guards.process_state import query_of
from ov_backend.guards.versions import is_of_package
from ov_backend.guards.watch import ShownItems

_PLAIN = frozenset({*SCALARS, range})
_CONTAINERS = frozenset({dict, list, tuple, set, collections.OrderedDict, collections.defaultdict, collections.Counter})
#: Objects that are compared and printed with all their attributes.
SHOWN = (types.SimpleNamespace, argparse.Namespace)


class ValueWalk(Notes):
    """Describes values and watches what they are made of; functions, classes and modules are described by :class:`Walk`."""

    def _value(self, value: Any, path: str) -> None:
        if isinstance(value, enum.Enum):
            self._add("enum", type(value).__module__, type(value).__qualname__, value.name, repr(value.value))
            self.watch.attribute(value, "_value_")
            self._global_class(type(value))
            if self._first(value):
                self._own_attributes(value, path)
        elif type(value) in _PLAIN or isinstance(value, TORCH_VALUES):
            self._add(type(value).__name__, repr(value))
        elif isinstance(value, np.generic) and is_of_package(type(value)) and not isinstance(value, np.void):
            self._add("scalar", value.dtype, repr(value.item()))
        elif isinstance(value, (np.generic, *BUFFERS)):  # with attributes of its own, or what code may write to in place
            self._opaque(value, path)
        elif isinstance(value, SCALARS):
            self._derived_scalar(value, path)
        elif isinstance(value, torch.Tensor):
            self._tensor(value, path, lambda: value)
        elif isinstance(value, np.ndarray):
            self._array(value, path)
        elif isinstance(value, types.CodeType):
            self._add("code", number_of(value))
        elif isinstance(value, types.FunctionType):
            self._function(value, path)
        elif isinstance(value, types.MethodType):
            self._value(value.__func__, path)
            self._value(value.__self__, path)
        elif isinstance(value, type) and not isinstance(value, types.GenericAlias):  # Python 3.10 counts these as classes
            self._global_class(value)
            if isinstance(value, abc.ABCMeta):
                self._registered(value)
        elif isinstance(value, torch.nn.Module):
            self._other_module(value, path)
        elif isinstance(value, types.ModuleType):
            self._python_module(value, path)
        elif isinstance(value, functools._lru_cache_wrapper):
            self.caches.append(value)
            self._cache(value, path)
        elif isinstance(value, BY_TEXT):
            self._add(type(value).__name__, value)
            if isinstance(value, re.Pattern):  # its text says no more than 200 characters of it
                self._add(value.pattern)
            if isinstance(value, types.GenericAlias):  # it has the attributes of the class
                self._value(value.__origin__, path)
        elif isinstance(value, slice):
            self._add("slice")
            for part in (value.start, value.stop, value.step):
                self._value(part, path)
        elif isinstance(value, BUILTINS):
            self._add("builtin", getattr(value, "__module__", ""), getattr(value, "__qualname__", ""))
            owner = getattr(value, "__self__", None)
            if not isinstance(owner, types.ModuleType) and type(owner).__module__ != "pybind11_builtins":  # these are code
                self._value(owner, path)
        elif isinstance(value, weakref.ref):
            self._reference(value, path)
        elif isinstance(value, UNWATCHED) or (isinstance(value, functools.partial) and value.func is getattr):
            self._add("unwatched", type(value).__name__)
            self.volatile[path] = f"it uses {path}, a {type(value).__name__}, which reads what is not watched"
        elif isinstance(value, (logging.Filterer, logging.LoggerAdapter)):
            self._add("logger")
            self._plain_attributes(value)
        elif isinstance(value, INERT) or type(value) is object:
            self._add("inert")
        elif isinstance(value, contextvars.ContextVar):
            if self._first(value):
                self._variable(value, path)
        elif len(self._places) > self._max_nodes or (is_ours(type(value).__module__) and not dataclasses.is_dataclass(value)):
            self._opaque(value, path)
        elif self._first(value):
            self._object(value, path)

    def _reference(self, reference: weakref.ref[Any], path: str) -> None:
        """A weak reference: to a module or weight of the tree, which keeps it alive, or to something that may be gone."""
        held = self._place_in_tree(reference()) if type(reference) is weakref.ref else None
        self._add("weakref", held)
        self.watch.content(lambda: id(reference()))
        if held is None:
            self.volatile[path] = f"it uses {path}, a weak reference, whose object may be gone at the next call"

    def _variable(self, variable: contextvars.ContextVar[Any], path: str) -> None:
        value = held_by(variable)
        self._alive.append(value)
        self.watch.content(functools.partial(which_is_held_by, variable))
        if value is UNSET:
            self._add("unset")
        elif isinstance(value, torch.Tensor):
            self._tensor(value, path, functools.partial(held_by, variable))
        else:
            self._add("set")
            self._value(value, path)

    def _derived_scalar(self, value: Any, path: str) -> None:
        """A number or text of a class of its own, which may have attributes and methods beside its value."""
        kind: Any = next(kind for kind in SCALARS if isinstance(value, kind))
        self._add(kind.__name__, kind.__repr__(value))
        if self._first(value):
            self._global_class(type(value))
            self.watch.type_of(value)
            self._own_attributes(value, path)

    def _signature(self, value: inspect.Signature | inspect.Parameter, path: str) -> None:
        """A signature, or a part of one, whose text says what it is; and the defaults and annotations in it."""
        self._add(value)
        for each in value.parameters.values() if isinstance(value, inspect.Signature) else (value,):
            for given in (each.default, each.annotation):
                self._value(given, f"{path}'s {each.name}")

    def _registered(self, cls: abc.ABCMeta) -> None:
        """The classes that an abstract class was told to count among its own, for ``isinstance``."""
        read = functools.partial(registered_with, cls)
        self.watch.content(read)
        self._add(read())

    def _plain_attributes(self, logger: logging.Filterer | logging.LoggerAdapter[Any]) -> None:
        """The numbers and texts that code reads of a logger; the rest of it is of other packages and of the program's log."""
        for name, content in list(vars(logger).items()):
            if isinstance(content, SCALARS) and self._is_read(name):
                self.watch.attribute(logger, name)
                self._add(name, content)

    def _array(self, value: np.ndarray, path: str) -> None:
        if type(value) is not np.ndarray and self._first(value):
            self._own_attributes(value, path)
        if value.dtype.hasobject:
            self._opaque(value, path)
        else:
            self._add("array", value.dtype, value.shape, array_digest(value))
            self.watch.values.append(value)
            self.watch.content(functools.partial(array_digest, value))

    def _object(self, value: Any, path: str) -> None:
        self._add(type(value).__module__, type(value).__qualname__)
        if isinstance(value, (Mapping, list, tuple, set)):
            self._global_class(type(value))
            if type(value) not in _CONTAINERS:
                self.watch.type_of(value)
        if isinstance(value, functools.partial):
            for name in ("func", "args", "keywords"):
                self.watch.attribute(value, name)
                self._value(getattr(value, name), path)
            self._own_attributes(value, path)
        elif isinstance(value, Mapping):
            self._mapping(value, path)
            self._own_attributes(value, path)
        elif isinstance(value, (list, tuple, collections.deque)):
            if not isinstance(value, tuple):
                self._watch_table(value)
            self._add(f"{len(value)} items")
            if isinstance(value, collections.deque):
                self._add(value.maxlen)
            for i, item in enumerate(value):
                self._held(item, f"{path}[{i}]", functools.partial(item_or_none, value, i))
            self._own_attributes(value, path)
        elif isinstance(value, (set, frozenset)):
            if isinstance(value, set):
                self.watch.values.append(value)
                self.watch.content(functools.partial(list, value))
            for item in value:
                if isinstance(item, type):
                    self._add(number_of(item))
                else:
                    self._value(item, f"{path}'s item")
        else:
            self._plain_object(value, path)

    def _mapping(self, value: Mapping[Any, Any], path: str) -> None:
        query = query_of(value)
        if isinstance(value, dict):
            self._watch_table(value)
        elif query is not None:
            self.watch.content(query)
        try:
            pairs = list(own_kind(value).items(value) if isinstance(value, dict) else value.items())
        except Exception as error:  # a mapping of another package may refuse to be read before it is ready, and with any error
            pass_on_signals(error)
            self._opaque(value, path)
            return
        if not isinstance(value, dict) and query is None:
            self.watch.content(functools.partial(ShownItems, value))
        items = [(key, item) for key, item in pairs if not self._is_documentation(key)]
        self._add(f"{len(items)} items")
        for key, item in items:
            self._value(key, f"{path}'s key")
            read = functools.partial(dict.get, value, key) if isinstance(value, dict) else functools.partial(value.get, key)
            self._held(item, f"{path}[{text_of_key(key)}]", read)
        if isinstance(value, collections.defaultdict):
            self.watch.attribute(value, "default_factory")
            if value.default_factory is set:  # what it makes is empty, and what a forward puts into it is a change
                self._add("makes sets")
            else:
                self._value(value.default_factory, path)

    def _plain_object(self, value: Any, path: str) -> None:
        bare = attribute_or_none(value, "__dict__") is None and not slots_of(type(value))
        if isinstance(value, contextlib._GeneratorContextManager):
            for name in ("func", "args", "kwds"):  # they are gone once it was entered
                self.watch.attribute(value, name)
                self._value(attribute_or_none(value, name), path)
            self._add(number_of(attribute_or_none(value.gen, "gi_code")))
        elif type(value) in (torch.no_grad, torch.enable_grad) and vars(value).keys() <= {"prev"}:
            self.watch.length(vars(value))  # torch's decorator only copies it; "prev" is where its ``with`` keeps the mode before
        elif isinstance(value, (inspect.Signature, inspect.Parameter)):
            self._signature(value, path)
        elif isinstance(value, dataclasses.Field):
            for name in ("name", "default", "default_factory", "metadata"):
                self.watch.attribute(value, name)
                self._value(getattr(value, name), f"{path}.{name}")
        elif bare or isinstance(value, (*GENERATORS, *STREAMS)) or keeps_state(value):
            self._opaque(value, path)
        else:
            if callable(value) and is_of_package(type(value)):  # functions of numpy are objects with attributes
                self._add(attribute_or_none(value, "__name__"))
            self._class(type(value))
            self.watch.type_of(value)
            self._own_attributes(value, path)

    def _own_attributes(self, value: Any, path: str) -> None:
        """What an object keeps in its slots and its ``__dict__``, which a class derived from a container has too."""
        slots = slots_of(type(value))
        if slots:
            self.watch.slotted.append(value)
        for name in filter(self._is_read, slots):
            content = attribute_or(value, name, UNSET)
            if content is UNSET:  # asking for it may raise any error
                self.watch.content(functools.partial(attribute_or_none, value, name))
            else:
                self.watch.attribute(value, name)
                self.description.begin(f"{path}.{name}")
                self._add(name)
                self._held(content, f"{path}.{name}", functools.partial(attribute_or_none, value, name))
        attributes = attribute_or_none(value, "__dict__")
        if attributes is None:
            return
        self._watch_table(attributes)
        for name in self._listed(attributes):
            if not self._is_documentation(name) and (self._is_read(name) or isinstance(value, SHOWN)):
                self.description.begin(f"{path}.{name}")
                self._add(name)
                self._entry(attributes, name, f"{path}.{name}")
