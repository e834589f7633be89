"""A mark on disk while networks are prepared that nobody has asked for. If the process dies meanwhile, its mark stays.

Otherwise a host that runs out of memory would do so again at every start.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import psutil

_SUFFIX = ".preparing"


class CrashSentinel:
    """The marks of all processes in a folder; the mark of a process that is gone shows that it died while it prepared."""

    def __init__(self, folder: Path) -> None:
        self._folder = Path(folder)

    @contextlib.contextmanager
    def marked(self) -> Iterator[None]:
        """In this block this process prepares."""
        try:
            self.set()
            yield
        finally:
            self.remove()

    def set(self) -> None:
        """This process begins to prepare."""
        with contextlib.suppress(OSError):
            self._folder.mkdir(parents=True, exist_ok=True)
            self._own().touch()

    def remove(self) -> None:
        """This process has ended preparing."""
        with contextlib.suppress(OSError):
            self._own().unlink(missing_ok=True)

    def died(self) -> bool:
        """Whether a process has died while it prepared, since the last :meth:`forget`."""
        return bool(self._left())

    def forget(self) -> None:
        """Remove the marks of processes that are gone."""
        for path in self._left():
            with contextlib.suppress(OSError):
                path.unlink()

    def _own(self) -> Path:
        return self._folder / f"{os.getpid()}{_SUFFIX}"

    def _left(self) -> list[Path]:
        """The marks that other processes have left. A number may be in use again, or be this process's own."""
        with contextlib.suppress(OSError):
            return [path for path in self._folder.glob(f"*{_SUFFIX}") if path.stem.isdecimal() and _is_old(path)]
        return []


def _is_old(path: Path) -> bool:
    """Whether the process that made a mark is gone; one that began after the mark is another of the same number."""
    try:
        return psutil.Process(int(path.stem)).create_time() > path.stat().st_mtime + 1
    except psutil.NoSuchProcess:
        return True
    except (psutil.Error, OSError):
        return False
