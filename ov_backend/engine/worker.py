"""Runs jobs that take seconds in a separate thread, so that a waiting caller can be interrupted.

An abandoned job goes on, and later calls use its result; a call that needs the same result joins the pending job. Jobs run one
at a time, because captures must not overlap and a compile uses every core.
"""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any

import numpy as np

from ov_backend.errors import Interrupted, OVBackendError

#: Seconds between two checks whether the waiting caller was interrupted.
POLL_S = 0.05

Interruption = Callable[[], bool]

_inside: contextvars.ContextVar[bool] = contextvars.ContextVar("inside", default=False)


def inside() -> bool:
    """Whether this code runs in a job. A network that is called there is being traced as a part of another one."""
    return _inside.get()


class Worker:
    """One worker thread and its pending jobs by key."""

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._pending: dict[Hashable, Future[Any]] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._pending)

    def run(self, key: Hashable, job: Callable[[], Any], interrupted: Interruption | None = None) -> Any:
        """Run ``job()`` in the worker, or join the pending job of the same key, and return the result.

        Raises:
            Interrupted: ``interrupted()`` returned true before the result was there; the job goes on.
        """
        future = self._submit(key, job)
        while True:
            try:
                return future.result(timeout=POLL_S)
            except FutureTimeout:
                if future.done():
                    return future.result()  # the job itself raised a TimeoutError
                if interrupted is not None and interrupted():
                    raise Interrupted("interrupted while a network was being prepared; that goes on in the background") from None

    def wait(self) -> None:
        """Wait until no job is pending; errors of the jobs are not raised here."""
        while self._pending:
            for future in list(self._pending.values()):
                future.exception()

    def _submit(self, key: Hashable, job: Callable[[], Any]) -> Future[Any]:
        with self._lock:
            pending = self._pending.get(key)
            if pending is not None:
                return pending
            context = contextvars.copy_context()
            context.run(_inside.set, True)
            try:
                future = self._alive_pool().submit(self._run_job, context, np.geterr(), key, job)
            except RuntimeError:  # somebody has shut it down; while the interpreter ends, the second try raises too
                self._pool = None
                future = self._alive_pool().submit(self._run_job, context, np.geterr(), key, job)
            self._pending[key] = future
            return future

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
