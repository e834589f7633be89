"""The resident memory of a benchmark's own process."""

from __future__ import annotations

import threading

import psutil


def resident() -> int:
    """This process's memory, MiB."""
    return int(psutil.Process().memory_info().rss) >> 20


class Peak:
    """The most resident memory, MiB, in a block; sampled a hundred times a second."""

    def __enter__(self) -> Peak:
        self.before = self.most = resident()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def _watch(self) -> None:
        while not self._stop.wait(0.01):
            self.most = max(self.most, resident())

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
