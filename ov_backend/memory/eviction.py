"""Bounded stores in memory. One evicts what costs least to make again for its bytes, the other what was used least recently.

Keys are compared by Python code, where a signal's handler may raise: a plain dictionary is as it was then, an ``OrderedDict`` has
lost a link. What was used when is therefore a number of each entry.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import Any

from ov_backend.memory.available import available_memory, release_free_memory, total_memory

MIB = 1 << 20
#: Share of the machine's memory that compiled graphs may take if no budget is given.
DEFAULT_SHARE = 0.5


@dataclass
class Entry:
    """A value in a store, and what it is evicted with.

    ``group`` is evicted together, ``used`` grows with each use of a store's values, ``bytes`` is measured memory; ``seconds`` is
    what making it again costs, ``base`` the store's level when it was used last (see :class:`MemoryLRU`), ``hits`` how often it
    was used since it was put.
    """

    value: Any
    group: Hashable
    used: int
    bytes: int = 0
    seconds: float = 0.0
    base: float = 0.0
    hits: int = 0


class MemoryLRU:
    """Holds values up to a budget of bytes; thread-safe.

    What is evicted is decided by GreedyDual-Size (Cao and Irani, 1997): the priority of a value is the store's level when it was
    used last, plus the seconds that making it again takes, for each byte. The lowest is evicted, and the level rises to it, so
    that what is expensive is kept longer, but not for ever. Among values of equal priority the least recently used one goes.

    Args:
        budget_mb: MiB; 0 is :data:`DEFAULT_SHARE` of the machine's memory.
    """

    def __init__(self, budget_mb: int = 0) -> None:
        self.budget = budget_bytes(budget_mb)
        self._entries: dict[Hashable, Entry] = {}
        self._uses = itertools.count()
        self._lock = threading.RLock()
        self._level = 0.0
        #: Number of values evicted to stay within the budget, or to make room.
        self.evictions = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Hashable]:
        """The keys, the least recently used first."""
        with self._lock:
            return iter(sorted(self._entries, key=lambda key: self._entries[key].used))

    @property
    def bytes(self) -> int:
        """Measured memory of all values."""
        with self._lock:
            return sum(entry.bytes for entry in self._entries.values())

    def get(self, key: Hashable) -> Any:
        """The value under ``key``, now the most recently used, or None."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                return None
            entry.used, entry.hits, entry.base = next(self._uses), entry.hits + 1, self._level
            return entry.value

    def peek(self, key: Hashable) -> Entry | None:
        """The entry under ``key``, or None; this does not count as a use."""
        return self._entries.get(key)

    def put(self, key: Hashable, value: Any, size: int, group: Hashable = None, seconds: float = 0.0) -> None:
        """Hold a value of ``size`` bytes that costs so many seconds to make again, and evict others that exceed the budget.

        Values of one group are used together, and evicted together; None where a value is on its own.
        """
        with self._lock:
            self._entries[key] = Entry(value, key if group is None else group, next(self._uses), size, seconds, self._level)
        self.shrink()

    def evict(self, selects: Callable[[Hashable, Any], bool]) -> int:
        """Evict the values for which ``selects(key, value)`` is true, and release their memory; returns their number."""
        with self._lock:
            keys = [key for key, entry in self._entries.items() if selects(key, entry.value)]
            for key in keys:
                del self._entries[key]
        if keys:
            release_free_memory()
        return len(keys)

    def shrink(self) -> None:
        """Evict the groups of the lowest priority until the rest fits the budget; the most recent value's always stays."""
        evicted = 0
        with self._lock:
            while self.bytes > self.budget and (count := self._evict_lowest()):
                evicted += count
        if evicted:
            release_free_memory()

    def make_room(self, size: int) -> int:
        """Evict the groups of the lowest priority until so many bytes of the machine's memory are free.

        The most recent value's group always stays. Returns the number of values that were evicted.
        """
        return self.evict_until(lambda: available_memory() >= size)

    def evict_until(self, enough: Callable[[], bool]) -> int:
        """Evict the groups of the lowest priority until ``enough()``; as :meth:`make_room`."""
        evicted = 0
        while not enough():
            with self._lock:
                count = self._evict_lowest()
            if not count:
                break
            evicted += count
            release_free_memory()
        return evicted

    def _evict_lowest(self) -> int:
        """Evict the group of the lowest priority; returns the number of its values, 0 if there is none."""
        priorities = self._priorities()
        if not priorities:
            return 0
        group = min(priorities, key=lambda each: priorities[each])  # of equals the first, used least recently
        self._level = max(self._level, priorities[group])
        keys = [key for key, entry in self._entries.items() if entry.group == group]
        for key in keys:
            del self._entries[key]
        self.evictions += len(keys)
        return len(keys)

    def _priorities(self) -> dict[Hashable, float]:
        """The priority of each group but the most recent one, the least recently used first."""
        entries = sorted(self._entries.values(), key=_used)
        groups: dict[Hashable, list[Entry]] = {}
        for entry in entries:
            if entry.group != entries[-1].group:
                groups.setdefault(entry.group, []).append(entry)
        return {group: _priority(of_group) for group, of_group in groups.items()}


def _priority(entries: list[Entry]) -> float:
    """Of values that are evicted together."""
    size = sum(entry.bytes for entry in entries)
    return max(entry.base for entry in entries) + sum(entry.seconds for entry in entries) / max(size, 1)


class CountLRU:
    """Holds at most ``count`` values, those of one group counted as one; thread-safe."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._entries: dict[Hashable, Entry] = {}
        self._uses = itertools.count()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: Hashable) -> Any:
        """The value under ``key``, now the most recently used, or None."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                return None
            entry.used = next(self._uses)
            return entry.value

    def put(self, key: Hashable, value: Any, group: Hashable = None) -> None:
        """Hold a value, and evict the least recently used group if there are too many; None is a group of its own."""
        with self._lock:
            self._entries[key] = Entry(value, key if group is None else group, next(self._uses))
            if len(self._entries) > self._count:
                latest = sorted(self._entries.values(), key=_used, reverse=True)
                kept = set([*dict.fromkeys(entry.group for entry in latest)][: self._count])
                self._entries = {each: entry for each, entry in self._entries.items() if entry.group in kept}

    def clear(self) -> None:
        """Release all values."""
        with self._lock:
            self._entries.clear()


def _used(entry: Entry) -> int:
    return entry.used


def budget_bytes(budget_mb: int) -> int:
    """A budget in bytes, from MiB; 0 is the default share of the machine's memory."""
    return budget_mb * MIB if budget_mb else int(total_memory() * DEFAULT_SHARE)
