"""How a network is captured: one trace at a time; then what the trace has changed is put back."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch

from ov_backend.core import tracing_lock
from ov_backend.core.errors import CaptureError, Interrupted, called_back
from ov_backend.engine import worker
from ov_backend.engine.conditions import restore_containers
from ov_backend.engine.hooks import NetworkHooks
from ov_backend.engine.lookup import Lookup
from ov_backend.engine.number_arguments import NumberArguments
from ov_backend.engine.request import CompileRequest, Superseded
from ov_backend.guards.code import CodeGuard
from ov_backend.trace.capture.forward import Reach, Stray
from ov_backend.trace.capture.trace import Captured

T = TypeVar("T")


class Capturing:
    """The captures of one network; ``lookup`` learns from every trace what code ran."""

    def __init__(
        self,
        module: torch.nn.Module,
        forward: Callable[..., Any],
        hooks: NetworkHooks,
        lookup: Lookup,
        numbers: NumberArguments,
    ) -> None:
        self._module, self._forward, self._hooks, self._lookup, self._numbers = module, forward, hooks, lookup, numbers
        #: Held while code and weights are looked at, and while a capture begins or ends; never by one that waits.
        self._lock = threading.Lock()
        #: Held by the capture that is running. Each has its own: a signal's handler may end a wait right behind it.
        self._running_now: threading.Lock | None = None

    def kept_off(self, look: Callable[[], T], interrupted: worker.Interruption | None) -> T:
        """What ``look()`` returns, while the network is not captured; during a capture the host may have patched its code."""
        while True:
            with self._lock:
                running = self._running_now
                if running is None:
                    return look()
            if running.acquire(timeout=worker.POLL_S):
                running.release()
            if interrupted is not None and called_back(interrupted):
                raise Interrupted("interrupted while a network was being captured; that goes on in the background")

    def kept_off_if_free(self, look: Callable[[], bool]) -> bool:
        """As :meth:`kept_off`, but waits for nothing: False where the network is being captured, or looked at."""
        if not self._lock.acquire(blocking=False):
            return False
        try:
            return self._running_now is None and look()
        finally:
            self._lock.release()

    @contextlib.contextmanager
    def _running(self) -> Iterator[None]:
        """In this block, which the worker's thread runs, the network is captured."""
        with tracing_lock.lock():  # before the network's own lock, which who holds this one may ask for
            running = threading.Lock()
            running.acquire()
            with self._lock:
                self._running_now = running
            try:
                yield
            finally:
                with self._lock:
                    self._running_now = None
                running.release()

    def capture(self, request: CompileRequest) -> tuple[Captured, CompileRequest]:
        """Trace the requested call, in the worker's thread; also returns the request with a guard of the code that ran.

        Raises:
            CaptureError: a compiled graph would not answer as the forward does.
            Superseded: the trace may have read or changed something that the request's guard did not watch.
        """
        call, code = request.call, request.guard.code
        reach = self._lookup.guards.reach(code, call) if self._hooks.watched else None
        try:
            with self._running(), self._hooks.tracing():
                capture = self._hooks.capture, self._module, self._forward, request.weights
                captured = self._numbers.capture(*capture, call, reach)
        except CaptureError as error:
            if reach is not None and isinstance(code, CodeGuard):
                after = None
                with contextlib.suppress(CaptureError, Superseded):
                    found = code.after_trace(reach.executed)
                    self._put_back(found, reach, request)
                    after = found
                if after is not None and isinstance(error, Stray):  # it may lead to what a list holds since the last trace
                    with self._lookup.lock:
                        self._lookup.rebind_to_guard(request, code, after)
            raise
        if reach is not None and isinstance(code, CodeGuard):
            after = code.after_trace(reach.executed)
            self._put_back(after, reach, request)
            with self._lookup.lock:
                request = self._lookup.rebind_to_guard(request, code, after)
        self._lookup.note_trace(request)
        return captured, request

    def _put_back(self, after: CodeGuard, reach: Reach, request: CompileRequest) -> None:
        """Put back what a trace has changed (:func:`restore_containers`), and say so for the lookup of the next call."""
        try:
            restore_containers(after, reach, request)
        finally:
            if any(state.restored for state in reach.before):
                with self._lookup.lock:
                    unseen = any(state.restored_process for state in reach.before)
                    self._lookup.note_change(request, after, unseen)
