"""Containers and generators of random numbers before a trace, and how they are restored after it."""

from __future__ import annotations

import array
import collections
import copy
import os
import pickle
import random
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch._subclasses import FakeTensor

from ov_backend.guards.describe import BUFFERS, GENERATORS, attribute_or, own_kind, slots_of
from ov_backend.trace.capture.process_tables import ProcessTables

#: What holds numbers, not objects.
_VALUES = (np.ndarray, *GENERATORS, *BUFFERS, type(os.environ))
_CONTAINERS = (dict, list, set, collections.deque)
_TABLES = ("_parameters", "_buffers", "_modules")
_OF_CLASSES = frozenset({"__dict__", "__weakref__", "_abc_impl", "__doc__"})
_ABSENT = object()


class ContainerState:
    """What every dict, list, deque, set, array, buffer, class and object with slots that a forward can reach holds now.

    ``restored`` says whether something was put back, ``restored_process`` whether that was in ``sys.modules`` or the filters of
    warnings, which no guard watches.
    """

    def __init__(self, module: torch.nn.Module, others: Iterable[Any] = ()) -> None:
        containers: dict[int, Any] = {id(table): table for child in module.modules() for table in _tables(child)}
        containers.update((id(each), each) for each in others)
        self.restored = self.restored_process = False
        self._of_process = ProcessTables()
        self._before = {key: (container, _content(container)) for key, container in containers.items()}
        self._of_modules = {id(table) for child in module.modules() for table in _tables(child)}
        #: The global names that a forward may set, by the table of their Python module; other threads may set the rest.
        self._named: dict[int, tuple[dict[str, Any], dict[str, Any]]] = {}

    def remember(self, named: Iterable[tuple[dict[str, Any], Iterable[str]]]) -> None:
        """Remember what stands under some names of Python modules."""
        for table, names in named:
            before = self._named.setdefault(id(table), (table, {}))[1]
            before.update((name, table.get(name, _ABSENT)) for name in names)

    def restore_names(self, named: Iterable[tuple[dict[str, Any], Iterable[str]]]) -> bool:
        """Put back what stood under those of these names that were set; whether there was one."""
        restored = False
        for table, names in named:
            before = self._named.get(id(table), (table, {}))[1]
            for name in names:
                now = table.get(name, _ABSENT)
                if name in before and now is not before[name] and not _is_code(now) and not _is_code(before[name]):
                    self.restored = restored = True
                    if before[name] is _ABSENT:
                        table.pop(name, None)
                    else:
                        table[name] = before[name]
        return restored

    def restore_process(self) -> bool:
        """Put back what was put into ``sys.modules`` and the filters of warnings; whether there was something."""
        self.restored_process = self._of_process.put_back()
        self.restored = self.restored or self.restored_process
        return self.restored_process

    def remove_fakes(self) -> bool:
        """Restore every container that holds a fake tensor now; whether there was one."""
        removed = False
        for container, before in self._before.values():
            if not isinstance(container, _VALUES) and any(map(_holds_fake, _content(container))):
                self.restored = removed = True
                _restore(container, before)
        return removed

    def changed(self, containers: Iterable[Any]) -> bool:
        """Whether one of these containers holds something else now."""
        return any(True for _ in self._changed(containers))

    def restore(self, containers: Iterable[Any]) -> bool:
        """Restore those of these containers that have changed, apart from modules' own; whether there was one."""
        changed = [pair for pair in self._changed(containers) if id(pair[0]) not in self._of_modules]
        for container, before in changed:
            _restore(container, before)
        self.restored = self.restored or bool(changed)
        return bool(changed)

    def _changed(self, containers: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
        for key in map(id, containers):
            container, before = self._before.get(key, (None, None))
            if container is not None and not _same(_content(container), before):
                yield container, before


def _content(container: Any) -> Any:
    """A copy: what stands in the slots, and of a dict its keys, then its values."""
    if isinstance(container, _VALUES):
        return _state(container)
    if isinstance(container, type):
        return [part for item in _members(container).items() for part in item]
    in_slots = [attribute_or(container, name, _ABSENT) for name in slots_of(type(container))]
    if isinstance(container, dict):
        kind = own_kind(container)
        return [*in_slots, *kind.keys(container), *kind.values(container)]
    return [*in_slots, *(container if isinstance(container, _CONTAINERS) else ())]


def _members(cls: type) -> dict[str, Any]:
    """What a class holds apart from code, which a host may exchange for the time of a trace."""
    return {name: value for name, value in vars(cls).items() if name not in _OF_CLASSES and not _is_code(value)}


def _is_code(value: Any) -> bool:
    return callable(value) or hasattr(type(value), "__get__")


def _state(value: Any) -> Any:
    """The state of an array, a buffer, the environment or a generator of random numbers."""
    if value is os.environ:
        return dict(os.environ)
    if isinstance(value, (bytearray, array.array, np.ndarray)):
        return copy.copy(value)
    if isinstance(value, BUFFERS):
        return bytes(memoryview(value))
    if isinstance(value, random.Random):
        return value.getstate()
    if isinstance(value, np.random.Generator):
        return copy.deepcopy(value.bit_generator.state)
    return value.get_state()


def _set_state(value: Any, state: Any) -> None:
    if value is os.environ:
        for name in os.environ.keys() - state.keys():
            del os.environ[name]
        os.environ.update({name: text for name, text in state.items() if (name, text) not in os.environ.items()})
    elif isinstance(value, (bytearray, array.array)):
        value[:] = state
    elif isinstance(value, BUFFERS):
        memoryview(value).cast("B")[:] = state
    elif isinstance(value, np.ndarray):
        np.copyto(value, state)
    elif isinstance(value, random.Random):
        value.setstate(state)
    elif isinstance(value, np.random.Generator):
        value.bit_generator.state = state
    else:
        value.set_state(state)


def _same(content: Any, before: Any) -> bool:
    if not isinstance(content, list):
        return pickle.dumps(content) == pickle.dumps(before)
    return len(content) == len(before) and all(a is b for a, b in zip(content, before))


def _restore(container: Any, before: Any) -> None:
    if isinstance(container, _VALUES):
        _set_state(container, before)
        return
    if isinstance(container, type):
        members = dict(zip(before[::2], before[1::2]))
        for name in _members(container):
            if name not in members:
                delattr(container, name)
        for name, value in members.items():
            if vars(container).get(name, _ABSENT) is not value:
                setattr(container, name, value)
        return
    names = slots_of(type(container))
    for name, value in zip(names, before):
        if value is not _ABSENT:
            object.__setattr__(container, name, value)
        elif attribute_or(container, name, _ABSENT) is not _ABSENT:
            object.__delattr__(container, name)
    before = before[len(names) :]
    if isinstance(container, dict):
        kind, half = own_kind(container), len(before) // 2
        kind.clear(container)
        for key, value in zip(before[:half], before[half:]):
            kind.__setitem__(container, key, value)
    elif isinstance(container, set):
        container.clear()
        container.update(before)
    elif isinstance(container, (list, collections.deque)):
        container.clear()
        container.extend(before)


def _holds_fake(value: Any) -> bool:
    if isinstance(value, (tuple, list)):
        return any(isinstance(item, FakeTensor) for item in value)
    return isinstance(value, FakeTensor)


def _tables(module: torch.nn.Module) -> Iterator[dict[str, Any]]:
    own = vars(module)
    yield own
    yield from (own[name] for name in _TABLES)
