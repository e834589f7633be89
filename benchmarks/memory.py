"""The resident memory of a benchmark's process."""

from __future__ import annotations

import threading

import psutil


def resident() -> int:
    """This process's resident memory in MiB."""
    return int(psutil.Process().memory_info().rss) >> 20


class Peak:
    """The peak of resident memory in a block, in MiB, sampled a hundred times a second."""

    def __enter__(self) -> Peak:
        self.before = self.peak = resident()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._thread.start()
        return self

    def _sample(self) -> None:
        while not self._stop.wait(0.01):
            self.peak = max(self.peak, resident())

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
