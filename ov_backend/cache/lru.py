"""Bounded stores in memory; the least recently used entry is evicted first."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import Any

from ov_backend.cache.memory import release_free_memory, total_memory

MIB = 1 << 20
#: Share of the machine's memory that compiled graphs may take if no budget is given.
DEFAULT_SHARE = 0.5


@dataclass
class Entry:
    """A value, its measured memory in bytes, and how often it was used since it was put."""

    value: Any
    bytes: int
    hits: int = 0


class MemoryLRU:
    """Holds values up to a budget of bytes; thread-safe.

    Args:
        budget_mb: MiB; 0 is :data:`DEFAULT_SHARE` of the machine's memory.
    """

    def __init__(self, budget_mb: int = 0) -> None:
        self.budget = budget_bytes(budget_mb)
        self._entries: OrderedDict[Hashable, Entry] = OrderedDict()
        self._lock = threading.RLock()
        #: Number of values evicted to stay within the budget.
        self.evictions = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Hashable]:
        with self._lock:
            return iter(list(self._entries))

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
            self._entries.move_to_end(key)
            entry.hits += 1
            return entry.value

    def peek(self, key: Hashable) -> Entry | None:
        """The entry under ``key``, or None; this does not count as a use."""
        return self._entries.get(key)

    def put(self, key: Hashable, value: Any, size: int) -> None:
        """Hold a value of ``size`` bytes, and evict others that exceed the budget."""
        with self._lock:
            self._entries[key] = Entry(value, size)
            self._entries.move_to_end(key)
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
        """Evict the least recently used values until the rest fits the budget; the most recent value always stays."""
        evicted = 0
        with self._lock:
            while len(self._entries) > 1 and self.bytes > self.budget:
                self._entries.popitem(last=False)
                evicted += 1
            self.evictions += evicted
        if evicted:
            release_free_memory()


class CountLRU:
    """Holds at most ``count`` values; thread-safe."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._entries: OrderedDict[Hashable, Any] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: Hashable) -> Any:
        """The value under ``key``, now the most recently used, or None."""
        with self._lock:
            if key in self._entries:
                self._entries.move_to_end(key)
            return self._entries.get(key)

    def put(self, key: Hashable, value: Any) -> None:
        """Hold a value, and evict the least recently used one if there are too many."""
        with self._lock:
            self._entries[key] = value
            self._entries.move_to_end(key)
            while len(self._entries) > self._count:
                self._entries.popitem(last=False)

    def clear(self) -> None:
        """Release all values."""
        with self._lock:
            self._entries.clear()


def budget_bytes(budget_mb: int) -> int:
    """A budget in bytes, from MiB; 0 is the default share of the machine's memory."""
    return budget_mb * MIB if budget_mb else int(total_memory() * DEFAULT_SHARE)
