"""Compiles in the background what calls will need, while other networks compute. A call waits only for what is being compiled.

Only known graphs are bound and compiled here: a capture runs the module's own code, and belongs to the call. What is compiled
ahead is used after the same check as everything else, see :meth:`ov_backend.engine.lookup.Lookup.find`.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from ov_backend.core.errors import pass_on_signals
from ov_backend.engine import worker
from ov_backend.engine.worker import Worker
from ov_backend.guards.content import Mark
from ov_backend.guards.weights import WeightsGuard

log = logging.getLogger(__name__)

Job = Callable[[], None]


@dataclass(frozen=True)
class Unverified:
    """Weights that were in use elsewhere while a graph was compiled of them, until ``ended`` of the monotonic clock.

    They had these marks when their digest was taken.
    """

    marks: tuple[Mark, ...]
    ended: float

    def verify(self, guard: WeightsGuard) -> bool:
        """Whether the weights were those of the digest all the time; all content is read once more after the compile.

        The guard has the same digest now. Before the first trace another guard may have taken it.

        In a worker's thread no new state is noted: an interrupted caller may be writing the weights meanwhile.
        """
        if guard.marks() != self.marks:
            return False
        guard.read_since(self.ended)
        return guard.is_unchanged() if worker.inside() else guard.untouched()


class AheadWorker:
    """One thread for jobs that nobody waits for; they begin while no call waits for a compile of the worker in front."""

    def __init__(self, front: Worker) -> None:
        self._front = front
        self._waiting: dict[Hashable, Job] = {}
        self._running: tuple[Hashable, threading.Event] | None = None
        self._pool: ThreadPoolExecutor | None = None
        self._has_thread = False
        #: Entered in place of the condition, whose ``__enter__`` is Python: what a signal's handler raises there would leave the
        #: lock held for ever.
        self._lock = threading.RLock()
        self._idle = threading.Condition(self._lock)
        #: Grows when a job begins and when it ends: memory that is measured meanwhile is not of one compile alone.
        self.changes = 0

    def __len__(self) -> int:
        """The number of jobs, the running one included."""
        with self._lock:
            return len(self._waiting) + (self._running is not None)

    def __contains__(self, key: Hashable) -> bool:
        """Whether a job of this key runs or waits."""
        with self._lock:
            return key in self._waiting or (self._running is not None and self._running[0] == key)

    @property
    def running(self) -> bool:
        """Whether a job runs now."""
        return self._running is not None

    def submit(self, key: Hashable, job: Job) -> None:
        """Run ``job()`` after those that wait, unless there is one of the same key; its errors are logged for debugging."""
        with self._lock:
            if key in self._waiting or (self._running is not None and self._running[0] == key):
                return
            self._waiting[key] = job
            if self._has_thread:
                return
            self._has_thread = True
        self._continue()

    def claim(self, key: Hashable) -> threading.Event | None:
        """A call needs this key now: drop its job if that has not begun; returns the end of one that runs, or None."""
        with self._lock:
            self._waiting.pop(key, None)
            self._idle.notify_all()
            return self._running[1] if self._running is not None and self._running[0] == key else None

    def cancel(self) -> None:
        """Drop the jobs that have not begun."""
        with self._lock:
            self._waiting.clear()
            self._idle.notify_all()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until there is no job; False after ``timeout`` seconds."""
        with self._lock:
            return self._idle.wait_for(lambda: not self._waiting and self._running is None, timeout)

    def _continue(self) -> None:
        try:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="ov_backend ahead")
            self._pool.submit(self._run_next)
        except RuntimeError as error:  # the interpreter ends
            pass_on_signals(error)
            with self._lock:
                self._waiting.clear()
                self._has_thread = False
                self._idle.notify_all()

    def _run_next(self) -> None:
        self._front.wait()
        with self._lock:
            if not self._waiting:
                self._has_thread = False
                self._idle.notify_all()
                return
            key = next(iter(self._waiting))
            job = self._waiting.pop(key)
            ended = threading.Event()
            self._running, self.changes = (key, ended), self.changes + 1
        try:
            job()
        except Exception as error:  # the call that needs it does it itself, and reports its own error
            pass_on_signals(error)
            log.debug("Nothing was prepared ahead", exc_info=True)
        finally:
            with self._lock:
                self._running, self.changes = None, self.changes + 1
                self._idle.notify_all()
            ended.set()
        self._continue()  # as a task of its own: none begins while the interpreter ends
