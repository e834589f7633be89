"""Runs jobs that take seconds in a separate thread, so that a waiting caller can be interrupted.

An abandoned job goes on, and later calls use its result; a call that needs the same result joins the pending job. Jobs run one
at a time, because captures must not overlap and a compile uses every core. What a signal's handler raises is raised in the caller
and never in a job: whatever a job raises is its own.
"""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np

from ov_backend.core import tracing_lock
from ov_backend.core.errors import Interrupted, OVBackendError, called_back, pass_on_signals

#: Seconds between two checks whether the waiting caller was interrupted.
POLL_S = 0.05

Interruption = Callable[[], bool]

_inside: contextvars.ContextVar[bool] = contextvars.ContextVar("inside", default=False)


def inside() -> bool:
    """Whether this code runs in a job. A network that is called there is being traced as a part of another one."""
    return _inside.get()


class _Pending(NamedTuple):
    """A job, and a lock that is held until it has ended.

    The callers wait for the lock: an exception may leave that at any moment. In the middle of a condition's wait it would be
    replaced by one about the condition's lock.
    """

    future: Future[Any]
    running: threading.Lock

    @classmethod
    def of(cls, future: Future[Any]) -> _Pending:
        running = threading.Lock()
        running.acquire()
        future.add_done_callback(lambda _: running.release())
        return cls(future, running)

    def wait(self, seconds: float) -> bool:
        """Whether the job has ended, at the latest after some seconds."""
        if self.running.acquire(timeout=seconds):
            self.running.release()
        return self.future.done()


class Worker:
    """One worker thread and its pending jobs by key."""

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._pending: dict[Hashable, _Pending] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._pending)

    def __contains__(self, key: Hashable) -> bool:
        return key in self._pending

    def run(self, key: Hashable, job: Callable[[], Any], interrupted: Interruption | None = None) -> Any:
        """Run ``job()`` in the worker, or join the pending job of the same key, and return the result.

        Raises:
            Interrupted: ``interrupted()`` returned true before the result was there; the job goes on.
        """
        if tracing_lock.is_held():
            return self._run_lent(key, job)
        pending = self._submit(key, job)
        while not pending.wait(POLL_S):
            if interrupted is not None and called_back(interrupted):
                raise Interrupted("interrupted while a network was being prepared; that goes on in the background")
        return pending.future.result()

    def wait(self) -> None:
        """Wait until no job is pending; errors of the jobs are not raised here."""
        while self._pending:
            for pending in list(self._pending.values()):
                pending.wait(POLL_S)

    def _submit(self, key: Hashable, job: Callable[[], Any], lent: bool = False) -> _Pending:
        with self._lock:
            pending = self._pending.get(key)
            if pending is not None:
                return pending
            context = contextvars.copy_context()
            context.run(_inside.set, True)
            if lent:
                tracing_lock.lend(context)
            try:
                future = self._alive_pool().submit(self._run_job, context, np.geterr(), key, job)
            except RuntimeError as error:  # somebody has shut it down; while the interpreter ends, the second try raises too
                pass_on_signals(error)
                self._pool = None
                future = self._alive_pool().submit(self._run_job, context, np.geterr(), key, job)
            self._pending[key] = pending = _Pending.of(future)
            return pending

    def _run_lent(self, key: Hashable, job: Callable[[], Any]) -> Any:
        """Run a job for a caller that holds PyTorch's lock of traces: a thread of its own has it until the job has ended.

        The worker's thread may be waiting for that lock with another call's job, maybe of the same key.
        """
        pending = Worker()._submit(key, job, lent=True)
        try:
            while not pending.wait(POLL_S):
                pass
        finally:  # the caller was interrupted, and must not give the lock away meanwhile
            pending.future.exception()
        return pending.future.result()

    def _alive_pool(self) -> ThreadPoolExecutor:
        """The pool; a new one where there is none yet, or where its thread has been killed."""
        threads = getattr(self._pool, "_threads", ())
        if self._pool is None or (threads and not any(thread.is_alive() for thread in threads)):
            self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="ov_backend")
        return self._pool

    def _run_job(self, context: contextvars.Context, errors: Any, key: Hashable, job: Callable[[], Any]) -> Any:
        try:
            with np.errstate(**errors):  # the caller's; before version 2 numpy keeps them for each thread
                return context.run(job)
        except SystemExit as error:  # it would end the caller's program
            raise OVBackendError(f"the compile was ended from outside ({error!r})") from error
        finally:
            with self._lock:
                self._pending.pop(key, None)
