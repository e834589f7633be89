"""Work that takes seconds, done in a thread of its own, so that whoever waits for it can stop waiting.

Abandoned work goes on and leaves its result where later calls find it; a call that wants the same thing meanwhile joins
it. One thing is made at a time: captures may not overlap, and a compile uses every core by itself.
"""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYet
from typing import Any

from ov_backend.errors import Interrupted

#: Seconds between two looks at whether the waiting caller was interrupted.
POLL_S = 0.05

Interruption = Callable[[], bool]

_inside: contextvars.ContextVar[bool] = contextvars.ContextVar("inside", default=False)


def inside() -> bool:
    """Whether this code runs in a job: a network that is called there is being traced as a part of another."""
    return _inside.get()


class Worker:
    """One worker, and the jobs that it has been given, by key."""

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._pending: dict[Hashable, Future[Any]] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._pending)

    def run(self, key: Hashable, make: Callable[[], Any], interrupted: Interruption | None = None) -> Any:
        """The result of ``make()``, made by the worker; of the pending job of the same key, if there is one.

        Raises:
            Interrupted: ``interrupted()`` became true first; the job goes on.
        """
        future = self._submit(key, make)
        while True:
            try:
                return future.result(timeout=POLL_S)
            except NotYet:
                if future.done():
                    return future.result()  # it is the job's own error of that name
                if interrupted is not None and interrupted():
                    raise Interrupted("interrupted while a network was being prepared; that goes on in the background") from None

    def wait(self) -> None:
        """Until nothing is pending; errors of the jobs are not raised here."""
        while self._pending:
            for future in list(self._pending.values()):
                future.exception()

    def _submit(self, key: Hashable, make: Callable[[], Any]) -> Future[Any]:
        with self._lock:
            pending = self._pending.get(key)
            if pending is not None:
                return pending
            if self._pool is None:
                self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="ov_backend")
            context = contextvars.copy_context()
            context.run(_inside.set, True)
            self._pending[key] = future = self._pool.submit(self._do, context, key, make)
            return future

    def _do(self, context: contextvars.Context, key: Hashable, make: Callable[[], Any]) -> Any:
        try:
            return context.run(make)
        finally:
            with self._lock:
                del self._pending[key]
