"""A cheap look at everything that a forward can read: is each thing still the very object that it was?

The loops run inside ``map``: there are some 16,000 attributes in a Stable Diffusion UNet.
"""

from __future__ import annotations

import operator
import types
from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from typing import Any

from ov_backend.patching import unwrap

_ABSENT = object()


class Watch:
    """Containers, single names, classes, closure cells and values by content, compared with what they were at :meth:`begin`."""

    def __init__(self) -> None:
        self.tables: list[Any] = []
        #: Sets and arrays; their content is watched.
        self.values: list[Any] = []
        self._sized: list[Any] = []
        self._keys: dict[tuple[int, str], tuple[Mapping[str, Any], str]] = {}
        self._cells: list[types.CellType] = []
        self._reads: list[Callable[[], Any]] = []
        self._objects: list[Any] = []
        self._attributes: list[tuple[Any, str]] = []
        self._classes: list[Mapping[str, Any]] = []

    def table(self, container: Any) -> None:
        """Watch everything in a dict, list or deque: no item may be added, removed or replaced."""
        self.tables.append(container)

    def length(self, container: Any) -> None:
        """Watch how many items a container has; what they are is watched elsewhere."""
        self._sized.append(container)

    def key(self, table: Mapping[str, Any], name: str) -> None:
        """Watch one name in a table that others may add to."""
        self._keys.setdefault((id(table), name), (table, name))

    def class_members(self, cls: type) -> None:
        """Watch a class's functions and values; a patch of ours is looked through."""
        self._classes.append(vars(cls))

    def cell(self, cell: types.CellType) -> None:
        """Watch what a function's closure holds."""
        self._cells.append(cell)

    def content(self, read: Callable[[], Any]) -> None:
        """Watch a value that is read at each look and compared by ``==``."""
        self._reads.append(read)

    def attribute(self, owner: Any, name: str) -> None:
        """Watch which object an attribute is."""
        self._attributes.append((owner, name))

    def type_of(self, value: Any) -> None:
        """Watch an object's class, which may be exchanged for another."""
        self._objects.append(value)

    def begin(self) -> None:
        """Remember what everything is now."""
        self._pairs = list(self._keys.values())
        self._before = [list(values) for values in self._looks()]

    def same(self) -> bool:
        """Whether everything is what it was."""
        lengths, *looks, reads = self._looks()
        lengths_before, *before, reads_before = self._before
        return (
            list(lengths) == lengths_before and all(map(_identical, looks, before)) and list(reads) == reads_before
        )

    def _looks(self) -> list[Iterable[Any]]:
        return [
            map(len, chain(self.tables, self._sized)),
            _items(self.tables),
            [table.get(name, _ABSENT) for table, name in self._pairs],
            chain.from_iterable(map(unwrap, members.values()) for members in self._classes),
            map(_held, self._cells),
            map(type, self._objects),
            [getattr(owner, name) for owner, name in self._attributes],
            [read() for read in self._reads],
        ]


def _items(containers: list[Any]) -> Iterable[Any]:
    return chain.from_iterable(chain(value, value.values()) if isinstance(value, dict) else value for value in containers)


def _held(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return _ABSENT


def _identical(now: Iterable[Any], before: list[Any]) -> bool:
    values = list(now)
    return len(values) == len(before) and (all(map(operator.is_, values, before)) or all(map(_is_or_names, values, before)))


def _is_or_names(now: Any, before: Any) -> bool:
    """Whether two values are one object, or equal names: the name of a class written in C is a new string at every look."""
    return now is before or (type(now) is type(before) is str and now == before)
