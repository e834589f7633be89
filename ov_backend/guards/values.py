"""The part of a walk that describes values: numbers, containers, arrays, plain objects; what it cannot describe is opaque."""

from __future__ import annotations

import abc
import collections
import contextlib
import contextvars
import dataclasses
import enum
import functools
import hashlib
import inspect
import logging
import pathlib
import re
import types
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from ov_backend.guards.describe import (
    BUFFERS,
    BUILTINS,
    DOCUMENTATION,
    GENERATORS,
    INERT,
    OF_LOADING,
    OF_MEMBERS,
    SCALARS,
    STREAMS,
    TORCH_VALUES,
    TYPE_FORMS,
    UNWATCHED,
    array_digest,
    attribute_or_none,
    buffer_digest,
    is_operator,
    item_or_none,
    items_of,
    registered_with,
    slots_of,
)
from ov_backend.guards.identity import number_of
from ov_backend.guards.process_state import query_of
from ov_backend.guards.watch import LooseTensor, ShownItems, Watch


class ValueWalk:
    """Describes values and watches what they are made of; functions, classes and modules are described by :class:`Walk`.

    Args:
        ignore: names of attributes that are left out.
        max_nodes: a walk that meets more objects than this calls the rest opaque.
        names: those of the attributes that are read; None stands for all.
    """

    def __init__(self, ignore: frozenset[str], max_nodes: int, names: frozenset[str] | None) -> None:
        self.watch = Watch()
        self.tensors: list[LooseTensor] = []
        self.opaque: list[str] = []
        #: Why something that answers otherwise at each call must not be used, by its path.
        self.volatile: dict[str, str] = {}
        #: Functions with a ``functools.lru_cache``; a trace leaves stand-ins there.
        self.caches: list[Any] = []
        #: Whether code goes through attributes in their order.
        self._in_order = False
        #: The names in the code that is walked; none before a trace.
        self._own_names: frozenset[str] = frozenset()
        #: A function that makes a text of something, and an object in whose text its address stands.
        self._makes_texts = self._has_address = ""
        #: Whether code asks for the names and texts of functions.
        self._names_of_functions = False
        #: The module or function that is walked.
        self._root: object = None
        self._hash = hashlib.sha256()
        self._ignore, self._max_nodes, self._names = ignore, max_nodes, names
        self._places: dict[int, int] = {}
        self._alive: list[Any] = []  # an id is only good as long as its object lives
        self._watched: set[int] = set()

    def _function(self, function: types.FunctionType, path: str) -> None:
        raise NotImplementedError

    def _class(self, cls: type) -> None:
        raise NotImplementedError

    def _global_class(self, cls: type) -> None:
        raise NotImplementedError

    def _cache(self, cache: functools._lru_cache_wrapper[Any], path: str) -> None:
        raise NotImplementedError

    def _python_module(self, module: types.ModuleType, path: str) -> None:
        raise NotImplementedError

    def _other_module(self, module: torch.nn.Module, path: str) -> None:
        raise NotImplementedError

    def _add(self, *parts: object) -> None:
        for part in parts:
            self._hash.update(str(part).encode("utf-8", "surrogatepass"))
            self._hash.update(b"\0")

    def _is_read(self, name: str) -> bool:
        """Whether the attributes of this name count."""
        return name not in self._ignore and (self._names is None or name in self._names)

    def _listed(self, attributes: Mapping[str, Any]) -> list[str]:
        """The names of attributes, in their own order where that counts."""
        return list(attributes) if self._in_order else sorted(attributes, key=str)

    def _is_gone_through(self, path: str) -> bool:
        """Whether code may go through a set in its order: it reaches an attribute or a global by a name."""
        name = re.search(r"[.!:](\w+)(?:\[[^\]]*\])*$", path)
        if name is None or (name[1] in self._own_names and name[1] not in OF_MEMBERS):
            return True
        return self._names is None and name[1] not in OF_LOADING | OF_MEMBERS

    def _of_this_process(self, reason: str) -> None:
        """What a trace reads of hashes and addresses holds for this very module in this process."""
        self._add("process", number_of(self._root))
        if len(self.opaque) < 8:
            self.opaque.append(reason)

    def _first(self, item: object) -> bool:
        """Whether an object is met for the first time; later its place stands for it."""
        place = self._places.get(id(item))
        if place is not None:
            self._add("place", place)
            return False
        self._places[id(item)] = len(self._places)
        self._alive.append(item)
        return True

    def _watch_table(self, table: Any) -> None:
        if id(table) not in self._watched:
            self._watched.add(id(table))
            self._alive.append(table)
            self.watch.table(table)

    def _opaque(self, value: object, path: str) -> None:
        if isinstance(value, GENERATORS):
            self.watch.values.append(value)
        if isinstance(value, (*GENERATORS, *STREAMS)):
            self.volatile[path] = f"it uses {path}, a {type(value).__name__}, which answers something else at each call"
        self._add("opaque", type(value).__module__, type(value).__qualname__, number_of(value))
        if len(self.opaque) < 8:
            self.opaque.append(f"{path} is a {type(value).__qualname__}")

    def _entry(self, table: dict[str, Any], name: Any, path: str) -> None:
        value = table[name]
        if isinstance(value, torch.Tensor):
            self._tensor(value, path, functools.partial(table.get, name))
        else:
            if isinstance(value, (types.FunctionType, types.MethodType, functools.partial)):
                self._has_address = path
            self._value(value, path)

    def _tensor(self, value: torch.Tensor, path: str, read: Callable[[], Any]) -> None:
        self._add("tensor", tuple(value.shape), value.dtype)
        if self._first(value):
            self.tensors.append(LooseTensor(path, read, value))

    def _value(self, value: Any, path: str) -> None:
        if isinstance(value, enum.Enum):
            self._add("enum", type(value).__module__, type(value).__qualname__, value.name, repr(value.value))
            self.watch.attribute(value, "_value_")
            self._global_class(type(value))
            if self._first(value):
                self._own_attributes(value, path)
        elif isinstance(value, (*SCALARS, *TORCH_VALUES, range, slice)):
            self._add(type(value).__name__, repr(value))
        elif isinstance(value, torch.Tensor):
            self._tensor(value, path, lambda: value)
        elif isinstance(value, np.generic):
            self._add("scalar", value.dtype, repr(value.item()))
        elif isinstance(value, np.ndarray):
            self._array(value, path)
        elif isinstance(value, BUFFERS):
            self._add(type(value).__name__, buffer_digest(value))
            self.watch.content(functools.partial(buffer_digest, value))
        elif isinstance(value, types.FunctionType):
            self._function(value, path)
        elif isinstance(value, types.MethodType):
            self._value(value.__func__, path)
            self._value(value.__self__, path)
        elif isinstance(value, type):
            self._global_class(value)
            if isinstance(value, abc.ABCMeta):
                self._registered(value)
        elif isinstance(value, torch.nn.Module):
            self._other_module(value, path)
        elif isinstance(value, types.ModuleType):
            self._python_module(value, path)
        elif isinstance(value, (re.Pattern, pathlib.PurePath)):
            self._add(type(value).__name__, value)
        elif isinstance(value, functools._lru_cache_wrapper):
            self.caches.append(value)
            self._cache(value, path)
        elif is_operator(value) or isinstance(value, TYPE_FORMS):
            self._add(type(value).__name__, value)
        elif isinstance(value, BUILTINS):
            self._add("builtin", getattr(value, "__module__", ""), getattr(value, "__qualname__", ""))
            owner = getattr(value, "__self__", None)
            if not isinstance(owner, types.ModuleType):
                self._value(owner, path)
        elif isinstance(value, weakref.ref):
            self._add("weakref")
            self.volatile[path] = f"it uses {path}, a weak reference, whose object may be gone at the next call"
        elif isinstance(value, UNWATCHED) or (isinstance(value, functools.partial) and value.func is getattr):
            self._add("unwatched", type(value).__name__)
            self.volatile[path] = f"it uses {path}, a {type(value).__name__}, which reads what is not watched"
        elif isinstance(value, logging.Logger):
            self._add("logger")
            self._level(value)
        elif isinstance(value, INERT) or type(value) is object:
            self._add("inert")
        elif isinstance(value, contextvars.ContextVar):
            self.watch.content(functools.partial(value.get, None))
            self._value(value.get(None), path)
        elif len(self._places) > self._max_nodes:
            self._opaque(value, path)
        elif self._first(value):
            self._object(value, path)

    def _registered(self, cls: abc.ABCMeta) -> None:
        """The classes that an abstract class was told to count among its own, for ``isinstance``."""
        read = functools.partial(registered_with, cls)
        self.watch.content(read)
        self._add(read())

    def _level(self, logger: logging.Logger) -> None:
        if self._is_read("level"):
            self.watch.content(lambda: logger.level)
            self._add(logger.level)

    def _array(self, value: np.ndarray, path: str) -> None:
        if value.dtype.hasobject:
            self._opaque(value, path)
            return
        self._add("array", value.dtype, value.shape, array_digest(value))
        self.watch.values.append(value)
        self.watch.content(functools.partial(array_digest, value))

    def _object(self, value: Any, path: str) -> None:
        self._add(type(value).__module__, type(value).__qualname__)
        if isinstance(value, (Mapping, list, tuple, set)):
            self._global_class(type(value))
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
            for i, item in enumerate(value):
                if isinstance(item, torch.Tensor):
                    self._tensor(item, f"{path}[{i}]", functools.partial(item_or_none, value, i))
                else:
                    self._value(item, f"{path}[{i}]")
            self._own_attributes(value, path)
        elif isinstance(value, (set, frozenset)):
            if isinstance(value, set):
                self.watch.values.append(value)
                self.watch.content(functools.partial(list, value))
            if all(isinstance(item, (*SCALARS, type)) for item in value):
                self._set(value, path)
            else:
                self._opaque(value, path)
        else:
            self._plain_object(value, path)

    def _set(self, value: set[Any] | frozenset[Any], path: str) -> None:
        if not self._is_gone_through(path):
            self._add(sorted(map(repr, value)))
            return
        self._add(list(map(repr, value)))
        if any(isinstance(item, type) for item in value):
            self._of_this_process(f"{path} is a set of classes, whose order differs between processes")
        else:  # what code makes of the set, even of an empty one, has an order of its own
            self._add(hash("the seed"), *map(hash, value))

    def _mapping(self, value: Mapping[Any, Any], path: str) -> None:
        if isinstance(value, dict):
            self._watch_table(value)
        elif (query := query_of(value)) is not None:
            self.watch.content(query)
        else:
            self.watch.content(functools.partial(ShownItems, value))
        items = items_of(value) if isinstance(value, dict) else value.items()
        for key, item in list(items):
            if isinstance(key, str) and key in DOCUMENTATION:
                continue
            self._value(key, f"{path}'s key")
            if isinstance(item, torch.Tensor):
                read = functools.partial(dict.get, value, key) if isinstance(value, dict) else functools.partial(value.get, key)
                self._tensor(item, f"{path}[{key!r}]", read)
            else:
                self._value(item, f"{path}[{key!r}]")
        if isinstance(value, collections.defaultdict):
            self._value(value.default_factory, path)

    def _plain_object(self, value: Any, path: str) -> None:
        bare = getattr(value, "__dict__", None) is None and not slots_of(type(value))
        if isinstance(value, contextlib._GeneratorContextManager):
            for part in (value.func, value.args, value.kwds):
                self._value(part, path)
            return
        if isinstance(value, (inspect.Signature, inspect.Parameter)):
            self._add(value)
            return
        if isinstance(value, dataclasses.Field):  # what makes a default is called when an object is made
            for name in ("name", "default", "metadata"):
                self.watch.attribute(value, name)
                self._value(getattr(value, name), f"{path}.{name}")
            return
        if bare or isinstance(value, (*GENERATORS, *STREAMS)):
            self._opaque(value, path)
            return
        if type(value).__repr__ is object.__repr__:
            self._has_address = path
        self._class(type(value))
        self.watch.type_of(value)
        self._own_attributes(value, path)

    def _own_attributes(self, value: Any, path: str) -> None:
        """What an object keeps in its slots and its ``__dict__``, which a class derived from a container has too."""
        slots = slots_of(type(value))
        if slots:
            self.watch.slotted.append(value)
        for name in slots:
            if self._is_read(name):
                self.watch.attribute(value, name)
            if self._is_read(name) and hasattr(value, name):
                self._add(name)
                content = getattr(value, name)
                if isinstance(content, torch.Tensor):
                    self._tensor(content, f"{path}.{name}", functools.partial(attribute_or_none, value, name))
                else:
                    self._value(content, f"{path}.{name}")
        attributes = getattr(value, "__dict__", None)
        if attributes is None:
            return
        self._watch_table(attributes)
        for name in self._listed(attributes):
            if name not in DOCUMENTATION and self._is_read(name):
                self._add(name)
                self._entry(attributes, name, f"{path}.{name}")
