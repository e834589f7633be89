"""Prepares in the background, before anybody presses Generate, the networks that the last generation with such a model called."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable

from ov_backend.engine.crash_sentinel import CrashSentinel
from ov_backend.store.store import GraphStore
from ov_backend.ui.choices import Choices
from ov_backend.ui.infotext import Parameters
from ov_backend.ui.requested_shape import RequestedShape

log = logging.getLogger(__name__)

STOPPED = (
    "Networks are not prepared at the start: the last process ended while that was done. To try again, start once with"
    " --no-prepare and then without it."
)


def request_of(parameters: Parameters, choices: Choices, from_picture: bool) -> str:
    """What decides with which shapes networks are called, and what runs where, as JSON; no prompts."""
    fields = {
        "size": f"{parameters.width}x{parameters.height}",
        "batch": parameters.batch,
        "guided": parameters.guidance > 1,
        "from_picture": from_picture,
        "choices": choices.as_infotext(),
        **({"hires": parameters.hires} if parameters.hires != 1 else {}),
    }
    return json.dumps(fields, sort_keys=True)


class Preparer:
    """One thread that prepares what the last generation has called, and later what the page's size fields show.

    Args:
        prepare: prepares, given the mark of this process, and what is asked for or None for the last generation.
        drop: drops what ``prepare`` has asked for and what has not begun.
    """

    def __init__(self, prepare: Callable[[CrashSentinel, RequestedShape | None], None], drop: Callable[[], None]) -> None:
        self._prepare, self._drop = prepare, drop
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._marker: CrashSentinel | None = None
        self._waiting: list[RequestedShape | None] = []

    @property
    def superseded(self) -> bool:
        """Whether something newer than what is being prepared is asked for."""
        return bool(self._waiting)

    def start(self, store: GraphStore | None, enabled: bool) -> threading.Thread | None:
        """Prepare what the last generation has called; failures are logged for debugging.

        Args:
            store: the graph store, or None.
            enabled: if not, marks of earlier processes are removed, and nothing is prepared from now on.

        Returns:
            the thread, or None where nothing is prepared.
        """
        self._marker = None
        if store is None or store.problem():
            return None
        marker = CrashSentinel(store.folder)
        if not enabled:
            marker.forget()
            return None
        self._marker = marker
        return self._add(marker, None)

    def ask(self, asked: RequestedShape) -> threading.Thread | None:
        """Prepare this in place of what has not begun; returns at once, with the thread or None as :meth:`start` does."""
        return self._add(self._marker, asked) if self._marker is not None else None

    def _add(self, marker: CrashSentinel, asked: RequestedShape | None) -> threading.Thread:
        with self._lock:
            self._waiting = [*(each for each in self._waiting if each is None), asked]
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, args=(marker,), name="openvino-ready", daemon=True)
                self._thread.start()
            else:
                self._drop()  # under the lock: what is asked for now has not begun
            return self._thread

    def _run(self, marker: CrashSentinel) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._thread = None
                    return
                asked = self._waiting.pop(0)
            try:
                self._prepare(marker, asked)
            except Exception:  # nobody has asked for it
                log.debug("Nothing was prepared before a generation", exc_info=True)
            finally:
                marker.remove()
