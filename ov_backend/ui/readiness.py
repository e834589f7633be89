"""Prepares networks before anybody presses Generate, once the host is idle: those that the last generation with such a model
called when a model is loaded, those of the last generation like what the page shows when its size fields change."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from ov_backend.ui.host import Host
from ov_backend.ui.likely import Likely, RequestedShape, likely

log = logging.getLogger("ov_backend")

#: Seconds between two looks whether the host is idle, and how long it is waited for.
_LOOK_S, _PATIENCE_S = 0.1, 120.0


@contextlib.contextmanager
def spare(host: Host, waits: Callable[[], bool] = lambda: False) -> Iterator[bool]:
    """Keep generations from beginning in this block, for work that nobody waits for.

    Where one runs, or no model is loaded, the block runs without the host's lock, and is told so; ``waits`` says many times a
    second whether to wait for it first.
    """
    while not (free := _is_free(host)) and waits():
        time.sleep(_LOOK_S)
    try:
        yield free
    finally:
        if free:
            host.lock.release()


def _is_free(host: Host) -> bool:
    free = bool(host.lock.acquire(blocking=False))
    if free and host.denoiser() is None:
        host.lock.release()
        return False
    return free


class Readiness:
    """One thread that prepares for a host what is asked for last, and no more once something newer is asked for."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        #: None is for a model that was loaded.
        self._waiting: list[RequestedShape | None] = []
        self._shown: RequestedShape | None = None
        self._pictures = 0

    def model_loaded(self) -> None:
        """A model is loaded, or other weights in its place: prepare what the page shows, else the last generation."""
        self._pictures = self._host.status.runs
        self._add(None)

    def size_changed(self, asked: RequestedShape) -> None:
        """The page shows this now: prepare it in place of what has not begun, if it was made before; returns at once."""
        self._shown = asked
        self._add(asked)

    def wait(self) -> None:
        """Wait until nothing is being prepared."""
        thread = self._thread
        if thread is not None:
            thread.join()

    def try_again(self) -> None:
        """The user has switched preparing off or on: forget that a process ended while it prepared."""
        from ov_backend.engine.crash_sentinel import CrashSentinel

        if (store := self._host.store()) is not None:
            CrashSentinel(store.folder).forget()

    def _add(self, asked: RequestedShape | None) -> None:
        if not self._host.prepares_ahead():
            return
        with self._lock:
            self._waiting = [None] if asked is None else [*(each for each in self._waiting if each is None), asked]
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="openvino-ready", daemon=True)
                self._thread.start()
            elif self._host.engine is not None and self._host.engine.resources.run is None:
                self._host.engine.resources.ahead.cancel()  # under the lock: what is asked for now has not begun

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._waiting or not self._host.prepares_ahead():
                    self._thread, self._waiting = None, []
                    return
                asked = self._waiting.pop(0)
            try:
                self._prepare(asked)
            except Exception:  # nobody has asked for it
                log.debug("Nothing was prepared before a generation", exc_info=True)

    def _prepare(self, asked: RequestedShape | None) -> None:
        from ov_backend.engine.crash_sentinel import CrashSentinel

        host, store, end = self._host, self._host.store(), time.monotonic() + _PATIENCE_S
        if store is None or store.problem():
            return
        with contextlib.ExitStack() as marked:
            # the lock is for the look at weights and code, which takes a moment; nobody waits for a compile
            with spare(host, lambda: time.monotonic() < end and (asked is None or not self._waiting)) as free:
                run = self._likely(asked) if free and not host.status.busy else None
                if run is None:
                    return
                sentinel = CrashSentinel(store.folder)
                if sentinel.died():
                    what = "Networks are not prepared ahead: the last process ended while that was done"
                    host.status.add_message(f"{what}. To try again, {host.retry_advice}.")
                    return
                marked.enter_context(host.marked(sentinel))
                engine, denoiser = host.configure(run.choices), host.denoiser()
                is_new = engine.prepare_ahead(run.calls, host.networks(run.calls, run.choices)) > 0 or asked is None
                if self._waiting:
                    engine.resources.ahead.cancel()
            engine.resources.ahead.wait()

            def trace() -> None:  # a generation would wait for it too
                engine.trace_ahead(run.calls, host.networks(run.calls, run.choices))

            show_ready = partial(self._show_ready, run, engine, is_new)
            parts: list[Callable[[], object]] = [trace, *host.before_first_step(), show_ready]
            for part in parts:
                with spare(host) as free:  # a generation that begins meanwhile waits for this part, and need not do it
                    if free and host.denoiser() is denoiser and host.engine is engine:
                        part()

    def _likely(self, asked: RequestedShape | None) -> Likely | None:
        """What is to be prepared; nothing for a model with which a picture was made since it was loaded: that has prepared it."""
        from ov_backend.engine.ahead.history import History, kind_of

        store, denoiser = self._host.store(), self._host.denoiser()
        if store is None or (asked is None and self._host.status.runs != self._pictures):
            return None
        runs = History(store).runs(kind_of(denoiser))
        return likely(runs, asked or self._shown) or (likely(runs) if asked is None else None)

    def _show_ready(self, run: Likely, engine: Any, is_new: bool) -> None:
        """Show what is ready, if everything is and nothing else has begun; see :meth:`Status.may_show_ready`."""
        may_show = not self._waiting and self._host.status.may_show_ready(run.size, is_new)
        if may_show and engine.is_prepared(run.calls, self._host.networks(run.calls, run.choices)):
            self._host.status.job = run.ready()
