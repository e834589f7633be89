"""A cheap look at everything that a forward can read: is each thing still the very object that it was?

There are some 16,000 attributes in 3,400 tables in a Stable Diffusion UNet, so the loops run inside ``map`` and ``chain``.
"""

from __future__ import annotations

import functools
import logging
import operator
import types
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain, repeat
from typing import Any, NamedTuple

import torch

from ov_backend.core.errors import pass_on_signals
from ov_backend.core.patching import unwrap
from ov_backend.guards.describe import QUIET_TABLES, content_of

_ABSENT = object()
_NAMES = operator.attrgetter("__name__", "__qualname__")
_OF_FUNCTIONS = operator.attrgetter(
    "__code__", "__defaults__", "__kwdefaults__", "__name__", "__qualname__", "__module__", "__doc__"
)

_ATTRIBUTES = operator.attrgetter("__dict__")

log = logging.getLogger(__name__)


class LooseTensor(NamedTuple):
    """A tensor outside parameters and buffers."""

    path: str
    #: What stands there now.
    read: Callable[[], Any]
    #: What stood there when it was found.
    tensor: torch.Tensor


#: Tables of a module that count for gradients, or when its state is saved or loaded, or that are set along with its hooks.
_NOT_WATCHED = QUIET_TABLES - {"_compiled_call_impl"}
#: How many of the looks are compared by value; in all others each object must be the very one that it was.
_COMPARED_BY_VALUE = 3


class Watch:
    """Containers, single names, classes, closure cells and values by content, compared with what they were at :meth:`begin`.

    Attributes:
        tables: dicts, lists and deques.
        values: sets and arrays; their content is watched.
        slotted: objects with ``__slots__``; what is in the slots is watched.
        ordered: whether the order of modules' attributes counts; only code that lists them can tell.
        quiet: those of :data:`_NOT_WATCHED` that count all the same, for code reads them.
    """

    def __init__(self) -> None:
        self.ordered = True
        self.quiet: frozenset[str] = frozenset()
        self.tables: list[Any] = []
        self.values: list[Any] = []
        self.slotted: list[Any] = []
        self._of_modules: list[dict[str, Any]] = []
        self._sized: list[Any] = []
        self._ordered: list[Mapping[str, Any]] = []
        self._keys: dict[tuple[int, str], tuple[Mapping[str, Any], str]] = {}
        self._cells: list[types.CellType] = []
        self._reads: list[Callable[[], Any]] = []
        self._objects: list[Any] = []
        self._attributes: tuple[list[Any], list[str]] = [], []
        self._functions: dict[int, types.FunctionType] = {}
        self.classes: list[type] = []

    def table(self, container: Any) -> None:
        """Watch everything in a dict, list or deque: no item may be added, removed or replaced."""
        self.tables.append(container)

    def attributes_of_module(self, table: dict[str, Any]) -> None:
        """Watch the attributes of a PyTorch module, apart from tables that say nothing of what it computes."""
        self.tables.append(table)
        self._of_modules.append(table)

    def length(self, container: Any) -> None:
        """Watch how many items a container has; what they are is watched elsewhere."""
        self._sized.append(container)

    def order(self, table: dict[str, Any]) -> None:
        """Watch the names in a table and their order; what stands there is watched elsewhere."""
        self.length(table)
        self._ordered.append(table)

    def key(self, table: Mapping[str, Any], name: str) -> None:
        """Watch one name in a table that others may add to."""
        self._keys.setdefault((id(table), name), (table, name))

    def class_members(self, cls: type) -> None:
        """Watch a class's names, functions and values; a patch of ours is looked through."""
        self.classes.append(cls)

    @property
    def names(self) -> list[tuple[Mapping[str, Any], list[str]]]:
        """Tables of which single names are watched, with these names."""
        return list(self._names_by_table.values())

    def cell(self, cell: types.CellType) -> None:
        """Watch what a function's closure holds."""
        self._cells.append(cell)

    def content(self, read: Callable[[], Any]) -> None:
        """Watch a value that is read at each look and compared by ``==``."""
        self._reads.append(read)

    def function(self, function: types.FunctionType) -> None:
        """Watch a function's code, defaults, name and text, and how many attributes code has put on it."""
        self._functions[id(function)] = function

    def attribute(self, owner: Any, name: str) -> None:
        """Watch which object an attribute is."""
        for values, value in zip(self._attributes, (owner, name)):
            values.append(value)

    def type_of(self, value: Any) -> None:
        """Watch an object's class, which may be exchanged for another."""
        self._objects.append(value)

    def begin(self) -> None:
        """Remember what everything is now."""
        of_modules = set(map(id, self._of_modules))
        self._getters = list(map(_getter, map(tuple, self._of_modules), repeat(_NOT_WATCHED - self.quiet)))
        filled = [table for table in self.tables if len(table)]  # of an empty one the length says all, and most are
        self._dicts = [table for table in filled if isinstance(table, dict) and id(table) not in of_modules]
        self._lists = [table for table in filled if not isinstance(table, dict)]
        ordered = [*(self._of_modules if self.ordered else ()), *self._dicts, *filter(len, self._ordered)]
        self._linked = [table for table in ordered if isinstance(table, OrderedDict)]
        self._plain = [table for table in ordered if not isinstance(table, OrderedDict)]
        self._names_by_table: dict[int, tuple[Mapping[str, Any], list[str]]] = {}
        for table, name in self._keys.values():
            self._names_by_table.setdefault(id(table), (table, []))[1].append(name)
        self._before = [list(values) for values in self._looks()]

    def same(self) -> bool:
        """Whether everything is what it was."""
        try:
            return all(map(self._is_same, range(len(self._before)), self._looks()))
        except Exception as error:  # an attribute is gone, or what is read runs code of other packages, such as a property
            pass_on_signals(error)
            log.debug("Something that a forward reads cannot be read any more; it is looked for anew.", exc_info=True)
            return False

    def _is_same(self, number: int, now: Iterable[Any]) -> bool:
        values, before = list(now), self._before[number]
        if number < _COMPARED_BY_VALUE:
            return values == before
        if len(values) == len(before) and all(map(operator.is_, values, before)):
            return True
        if len(values) != len(before) or not all(map(_is_below_our_patches, values, before)):
            return False
        self._before[number] = values
        return True

    def _looks(self) -> Iterator[Iterable[Any]]:
        """One thing after the other, the first :data:`_COMPARED_BY_VALUE` of them numbers and values."""
        yield map(len, chain(self.tables, self._sized, map(_ATTRIBUTES, self._functions.values())))
        yield map(_NAMES, self.classes)
        yield [read() for read in self._reads]
        yield chain.from_iterable(chain(map(dict.keys, self._plain), map(OrderedDict.keys, self._linked)))
        yield chain.from_iterable(getter(table) for getter, table in zip(self._getters, self._of_modules))
        yield chain.from_iterable(map(dict.values, self._dicts))
        yield chain.from_iterable(self._lists)
        yield chain.from_iterable(map(table.get, names, repeat(_ABSENT)) for table, names in self._names_by_table.values())
        yield chain.from_iterable(members.values() for members in map(vars, self.classes))
        yield map(content_of, self._cells)
        yield map(type, self._objects)
        yield map(getattr, *self._attributes, repeat(_ABSENT))
        yield chain.from_iterable(map(_OF_FUNCTIONS, self._functions.values()))


@functools.lru_cache(maxsize=1024)
def _getter(names: tuple[str, ...], skipped: frozenset[str]) -> Callable[[dict[str, Any]], tuple[Any, ...]]:
    """Reads the attributes of a module that count; a scripted module may have none."""
    read = [name for name in names if name not in skipped]
    return operator.itemgetter(*read) if len(read) > 1 else lambda table: tuple(table[name] for name in read)


def _is_below_our_patches(now: Any, before: Any) -> bool:
    return unwrap(now) is unwrap(before)


class ShownItems:
    """Which objects a chain of dicts shows; items that are made anew at each access, or cannot be read, always differ."""

    def __init__(self, value: Mapping[Any, Any]) -> None:
        try:
            self._items = list(value.items())
        except Exception as error:  # a mapping of another package may raise any error where it is not ready
            pass_on_signals(error)
            self._items = [(object(), None)]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ShownItems) or len(self._items) != len(other._items):
            return False
        return all(key == name and item is value for (key, item), (name, value) in zip(self._items, other._items))

    __hash__ = None  # type: ignore[assignment]
