"""A WebUI that is ended on purpose while it prepares networks has not died of that: its mark is removed first.

Ctrl-C, and what stops or restarts the WebUI from its page or its API, end the process by ``os._exit``. SIGTERM, and SIGHUP from a
closed terminal, end it without running any Python. See :mod:`ov_backend.engine.crash_sentinel` for the mark.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from ov_backend.core.errors import PatchError
from ov_backend.core.patching import Patch
from ov_backend.engine.crash_sentinel import CrashSentinel

#: Those whose default is to end the process; Windows has no SIGHUP.
_SIGNALS = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]


class Ending:
    """Knows what is marked, and removes the mark when the process is ended on purpose."""

    def __init__(self) -> None:
        self._marker: CrashSentinel | None = None

    @contextlib.contextmanager
    def marked(self, marker: CrashSentinel) -> Iterator[None]:
        """In this block the mark stands, until it is left or the process is ended on purpose."""
        with contextlib.ExitStack() as after:
            after.callback(marker.remove)
            with contextlib.suppress(PatchError):  # ours is there already
                after.callback(Patch(os, "_exit", self._removing_first).undo)
            self._marker = marker
            marker.set()
            yield

    def handle_signals(self) -> None:
        """From now on; only the main thread can, and only where nobody else handles or ignores the signal."""
        for number in _SIGNALS:
            if signal.getsignal(number) is signal.SIG_DFL:
                with contextlib.suppress(ValueError):
                    signal.signal(number, self._end)

    def restore_signals(self) -> None:
        """Undo :meth:`handle_signals`, except where somebody else handles the signal now."""
        for number in _SIGNALS:
            if signal.getsignal(number) == self._end:
                with contextlib.suppress(ValueError):
                    signal.signal(number, signal.SIG_DFL)

    def _removing_first(self, leave: Callable[..., Any]) -> Callable[..., Any]:
        def remove_and_leave(*args: Any, **kwargs: Any) -> Any:
            self._remove()
            return leave(*args, **kwargs)

        return remove_and_leave

    def _end(self, number: int, frame: FrameType | None) -> None:
        self._remove()
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    def _remove(self) -> None:
        if self._marker is not None:
            self._marker.remove()


#: Process-wide instance.
ending = Ending()
