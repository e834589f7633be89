"""A bounded store of compiled graphs in memory: least recently used goes first when the budget is reached."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import Any

from ov_backend.cache.memory import release_free_memory, total_memory

MIB = 1 << 20
#: Share of the machine's memory that compiled graphs may take when nobody gives a budget.
DEFAULT_SHARE = 0.5


@dataclass
class Held:
    """One compiled graph, the memory it was measured to take in bytes, and how often it was found again."""

    value: Any
    bytes: int
    hits: int = 0


class MemoryLRU:
    """Keeps values up to a budget of bytes; may be used from several threads.

    Args:
        budget_mb: MiB; 0 is :data:`DEFAULT_SHARE` of the machine's memory.
    """

    def __init__(self, budget_mb: int = 0) -> None:
        self.budget = budget_bytes(budget_mb)
        self._held: OrderedDict[Hashable, Held] = OrderedDict()
        self._lock = threading.RLock()
        #: How many were let go of for the budget's sake.
        self.evictions = 0

    def __len__(self) -> int:
        return len(self._held)

    def __iter__(self) -> Iterator[Hashable]:
        with self._lock:
            return iter(list(self._held))

    @property
    def bytes(self) -> int:
        """Measured memory of everything held."""
        with self._lock:
            return sum(held.bytes for held in self._held.values())

    def get(self, key: Hashable) -> Any:
        """The value under ``key``, now the most recently used, or None."""
        with self._lock:
            held = self._held.get(key)
            if held is None:
                return None
            self._held.move_to_end(key)
            held.hits += 1
            return held.value

    def peek(self, key: Hashable) -> Held | None:
        """What is held under ``key``, or None; no use of it, and safe while another thread uses the store."""
        return self._held.get(key)

    def put(self, key: Hashable, value: Any, size: int) -> None:
        """Keep a value that was measured to take ``size`` bytes, and let go of the oldest ones over the budget."""
        with self._lock:
            self._held[key] = Held(value, size)
            self._held.move_to_end(key)
        self.shrink()

    def evict(self, wanted: Callable[[Hashable, Any], bool]) -> int:
        """Evict the values for which ``wanted(key, value)`` holds, and release their memory; returns how many there were."""
        with self._lock:
            gone = [key for key, held in self._held.items() if wanted(key, held.value)]
            for key in gone:
                del self._held[key]
        if gone:
            release_free_memory()
        return len(gone)

    def shrink(self) -> None:
        """Let go of the least recently used values over the budget; the newest stays, even alone over it."""
        evicted = 0
        with self._lock:
            while len(self._held) > 1 and self.bytes > self.budget:
                self._held.popitem(last=False)
                evicted += 1
            self.evictions += evicted
        if evicted:
            release_free_memory()


class CountLRU:
    """Keeps a few values that can be had again; may be used from several threads."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._held: OrderedDict[Hashable, Any] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._held)

    def get(self, key: Hashable) -> Any:
        """The value under ``key``, now the most recently used, or None."""
        with self._lock:
            if key in self._held:
                self._held.move_to_end(key)
            return self._held.get(key)

    def put(self, key: Hashable, value: Any) -> None:
        """Keep a value, and let go of the least recently used one over the count."""
        with self._lock:
            self._held[key] = value
            self._held.move_to_end(key)
            while len(self._held) > self._count:
                self._held.popitem(last=False)

    def clear(self) -> None:
        """Let go of everything."""
        with self._lock:
            self._held.clear()


def budget_bytes(budget_mb: int) -> int:
    """A budget in bytes: as given in MiB, or the default share of the machine's memory."""
    return budget_mb * MIB if budget_mb else int(total_memory() * DEFAULT_SHARE)
