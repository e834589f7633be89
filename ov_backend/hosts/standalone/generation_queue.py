"""One generation at a time: who waits for the pipeline, and who has asked to end what runs."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from ov_backend.core.errors import Interrupted

#: Seconds between two looks whether somebody who waits should go on waiting.
_LOOK_S = 0.1


class Turns:
    """The lock of a pipeline, and whether its holder is asked to stop."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._interrupted = threading.Event()
        #: Set when nobody wants the result of the present turn any more.
        self._withdrawn: threading.Event | None = None

    def interrupt(self) -> None:
        """Ask the holder of the present turn to stop; between two turns this does nothing."""
        self._interrupted.set()

    def is_interrupted(self) -> bool:
        """Whether the user has interrupted the present turn, or has withdrawn the request that it serves."""
        withdrawn = self._withdrawn
        return self._interrupted.is_set() or (withdrawn is not None and withdrawn.is_set())

    @contextlib.contextmanager
    def taken(self, withdrawn: threading.Event | None = None) -> Iterator[None]:
        """Wait for a turn, and have it in this block. What was interrupted before does not count for it.

        Args:
            withdrawn: an event that ends the waiting, and the turn, once it is set.

        Raises:
            Interrupted: the request was withdrawn while it waited.
        """
        while not self.lock.acquire(timeout=_LOOK_S):
            if withdrawn is not None and withdrawn.is_set():
                raise Interrupted("the request was withdrawn while it waited")
        try:
            self._interrupted.clear()
            self._withdrawn = withdrawn
            yield
        finally:
            self._withdrawn = None
            self.lock.release()
