"""The part of a walk that keeps its notes: the fingerprint, what is watched, tensors, and what could not be described."""

from __future__ import annotations

import collections
import functools
import types
from collections.abc import Callable, Mapping
from typing import Any

import torch

from ov_backend.guards.describe import BUFFERS, DOCUMENTATION, GENERATORS, STREAMS, keeps_state, number_of
from ov_backend.guards.traced_code import TracedCode
from ov_backend.guards.watch import LooseTensor, Watch
from ov_backend.guards.what_differed import Description

#: Packages whose other objects in C, such as scripted functions, are what they were made as.
_PACKAGES = ("torch", "openvino", "numpy")
#: A walk that has met this many objects calls the rest opaque: before the first trace, and after it.
_MAX_NODES = 100_000
_MAX_TRACED_NODES = 400_000
#: This package, whose version is in every key.
_OWN = __package__.partition(".")[0]


def is_ours(module: Any) -> bool:
    """Whether a Python module is one of this package: its objects lead to all engines and networks of the process."""
    return isinstance(module, str) and module.partition(".")[0] == _OWN


class Notes:
    """The notes of one walk; how each kind of value is described is said by the classes derived from this one."""

    _value: Callable[[Any, str], None]
    _function: Callable[[types.FunctionType, str], None]
    _class: Callable[[type], None]
    _global_class: Callable[[type], None]
    _cache: Callable[[functools._lru_cache_wrapper[Any], str], None]
    _python_module: Callable[[types.ModuleType, str], None]
    _other_module: Callable[[torch.nn.Module, str], None]
    _place_in_tree: Callable[[object], str | None]

    def __init__(self, ignore: frozenset[str], host_modules: frozenset[str], traced: TracedCode | None) -> None:
        self._ignore, self._host_modules, self._traced = ignore, host_modules, traced
        self.watch = Watch()
        self.watch.ordered = traced is None or traced.lists_attributes
        self.tensors: list[LooseTensor] = []
        #: Why something that answers otherwise at each call must not be used, by its path.
        self.volatile: dict[str, str] = {}
        #: Those of these paths whose use a trace shows, also by code that computes their names.
        self.seen_in_use: set[str] = set()
        #: Functions with a ``functools.lru_cache``; a trace leaves fake tensors there.
        self.caches: list[Any] = []
        #: Whether code goes through attributes in their order.
        self._in_order = traced is not None and traced.lists_attributes
        #: The names of the attributes that count, None for all; and those in the code itself, none before a trace.
        self._names, self._own_names = (None, frozenset[str]()) if traced is None else (traced.read, traced.own_names)
        self._max_nodes = _MAX_NODES if traced is None else _MAX_TRACED_NODES
        #: The texts of the classes in the tree of modules.
        self._tree_classes: set[str] = set()
        #: What the fingerprint is made of.
        self.description = Description()
        self._add = self.description.add
        self._places: dict[int, int] = {}
        self._alive: list[Any] = []  # an id is only good as long as its object lives
        self._watched: set[int] = set()
        #: How deep values lie in each other, and those that are described later, for they lie too deep.
        self._depth = 0
        self._later: collections.deque[tuple[Any, str]] = collections.deque()

    def _is_read(self, name: str) -> bool:
        """Whether the attributes of this name count."""
        return name not in self._ignore and (self._names is None or name in self._names or name.isdigit())

    def _is_documentation(self, name: object) -> bool:
        """Whether an entry says where a model came from; code that names it may compute with it all the same."""
        return isinstance(name, str) and name in DOCUMENTATION and name not in self._own_names

    def _listed(self, attributes: Mapping[str, Any]) -> list[str]:
        """The names of attributes, in their own order where that counts."""
        return list(attributes) if self._in_order else sorted(attributes, key=str)

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
        if isinstance(value, (*GENERATORS, *BUFFERS)):
            self.watch.values.append(value)
        if isinstance(value, torch.Generator):  # a trace shows what is drawn from it, and that its seed or state is read
            self.seen_in_use.add(path)
        if isinstance(value, (*GENERATORS, *STREAMS)):
            self.volatile[path] = f"it uses {path}, a {type(value).__name__}, which answers something else at each call"
        elif self._own_names and is_ours(type(value).__module__):
            self.volatile[path] = f"it uses {path}, which belongs to this package"
        elif self._own_names and (keeps_state(value) or not str(type(value).__module__).startswith(_PACKAGES)):
            self.volatile[path] = f"it uses {path}, a {type(value).__name__}, whose state cannot be seen"
        self._add("opaque", type(value).__module__, type(value).__qualname__, number_of(value))

    def _entry(self, table: dict[str, Any], name: Any, path: str) -> None:
        self._held(table[name], path, functools.partial(table.get, name))

    def _held(self, value: Any, path: str, read: Callable[[], Any]) -> None:
        """A value in a place that is read again if it is a tensor."""
        if isinstance(value, torch.Tensor):
            self._tensor(value, path, read)
        else:
            self._value(value, path)

    def _tensor(self, value: torch.Tensor, path: str, read: Callable[[], Any]) -> None:
        self.description.begin(path)
        self._add("tensor", tuple(value.shape), value.dtype, value.requires_grad)
        if self._first(value):
            if self._is_read("requires_grad"):
                self.watch.attribute(value, "requires_grad")
            read_of_it = [name for name in vars(value) if self._own_names and name in self._own_names]
            if read_of_it:
                self.volatile[path] = f"{path} has an attribute {read_of_it[0]!r} of its own, which a trace does not see"
            self.tensors.append(LooseTensor(path, read, value))
