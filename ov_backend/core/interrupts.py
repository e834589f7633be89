"""Ctrl-C on the command line: "Interrupted." and exit code 130 at every moment, also while packages are imported.

An interruption that is raised inside an import may be caught there, or leave a package half loaded. So as long as a command has
not begun its work, Ctrl-C ends the process at once. After that it raises ``KeyboardInterrupt``, so that files are removed or
completed; a second one ends the process. A batch handles SIGTERM in the same way.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

CODE = 130
_COMMAND = "ov-backend"


class _State:
    working = False
    interrupted = False


def is_command() -> bool:
    """Whether this process is about to run this package's command line; ``-m`` stands there while the module is looked up."""
    name = sys.argv[0] if sys.argv else ""
    return (name == "-m" and "ov_backend" in getattr(sys, "orig_argv", ())) or Path(name).stem == _COMMAND


def install() -> None:
    """Handle Ctrl-C from now on; only the main thread can."""
    with contextlib.suppress(ValueError):
        signal.signal(signal.SIGINT, _interrupt)


def install_for_termination() -> None:
    """Handle SIGTERM like Ctrl-C from now on, if :func:`install` handles that; a library may have replaced the handler before."""
    if signal.getsignal(signal.SIGINT) is _interrupt:
        signal.signal(signal.SIGTERM, _interrupt)


def _interrupt(number: int, frame: FrameType | None) -> None:
    if _State.working and not _State.interrupted:
        _State.interrupted = True
        raise KeyboardInterrupt
    with contextlib.suppress(OSError):
        os.write(2, b"Interrupted.\n")
    os._exit(CODE)


@contextlib.contextmanager
def work() -> Iterator[None]:
    """In this block, Ctrl-C raises ``KeyboardInterrupt``."""
    before, _State.working = _State.working, True
    try:
        yield
    finally:
        _State.working = before


def interrupted() -> bool:
    """Whether Ctrl-C has been pressed, even where somebody else has caught the exception."""
    return _State.interrupted
