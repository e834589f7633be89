"""The store of captured graphs on disk: named byte strings under a key. It knows nothing of compilers.

An entry is one zip file that appears whole or not at all: it is written under a temporary name, flushed to the disk and
renamed. Nothing in an entry is ever executed or unpickled; sizes are checked before they are trusted, and a checksum covers
every byte. The size of the store is bounded (the least recently used entry is removed first), and it removes only files that
this user wrote. Any fault of an entry or of the folder is a miss and one warning.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from ov_backend.core import posix
from ov_backend.core.errors import first_line, pass_on_signals
from ov_backend.core.settings import Settings
from ov_backend.store import ownership
from ov_backend.store.entry_file import BLOBS, DAMAGE, GRAPHS, RECIPES, RUNS, Kind, OtherVersion, pack, unpack

log = logging.getLogger(__name__)
_T = TypeVar("_T")

_KEY = re.compile(r"[0-9a-f]+")
_ABANDONED_AFTER_S = 3600.0
_TRIES = 8
#: Bounds of all recipes, and of all runs, on disk.
_RECIPE_BYTES, _RUN_BYTES = 64 << 20, 4 << 20
_PAUSES_S = (0.01, 0.04, 0.1)


@dataclass(frozen=True)
class Entry:
    """One entry, as the folder describes it: key, path, size in bytes, time of last use."""

    key: str
    path: Path
    bytes: int
    used: float


class GraphStore:
    """A folder of entries of one kind, of bounded total size; it is created at the first write."""

    def __init__(self, folder: Path, max_bytes: int = 1 << 30, kind: Kind = GRAPHS) -> None:
        self.folder = Path(folder)
        self.max_bytes = max_bytes
        self.kind = kind
        self._warned: set[str] = set()

    def get(self, key: str) -> dict[str, bytes] | None:
        """The byte strings stored under ``key``, or None. A damaged or foreign file is a miss and causes a warning."""
        return self.read(key, dict)

    def read(self, key: str, parse: Callable[[dict[str, bytes]], _T]) -> _T | None:
        """What ``parse`` makes of the byte strings, or None. One that raises any of :data:`DAMAGE` has found them damaged."""
        path = self._path(key)
        if self.problem():
            return None
        try:
            parsed = parse(unpack(path, self.kind, key))
            with contextlib.suppress(OSError):  # a read-only store works too, but cannot record the use
                os.utime(path)
            return parsed
        except FileNotFoundError:
            return None
        except DAMAGE as error:
            pass_on_signals(error)
            self._warn(f"Ignoring the stored {self.kind.noun} {path}: {_line(error)}. It will be replaced.")
            if not isinstance(error, (OSError, MemoryError, OtherVersion)):  # these are no fault of the file
                _unlink(path)
            return None

    def __contains__(self, key: str) -> bool:
        """Whether there is an entry of this key, damaged or not."""
        return self._path(key).is_file()

    def put(self, key: str, files: Mapping[str, bytes]) -> bool:
        """Store byte strings under ``key``, completely or not at all; False (and one warning) if that is impossible."""
        path = self._path(key)
        if self.problem():
            return False
        try:
            self._write_persistently(path, files)
        except (OSError, ValueError) as error:
            pass_on_signals(error)
            self._warn(f"Cannot store a {self.kind.noun} in {self.folder}: {_line(error)}. It is kept in memory only.")
            return False
        self._trim(path)
        return True

    def problem(self) -> str:
        """Why nothing is read from or written to this folder, or ""; the first time, a warning says so too."""
        problem = ownership.folder_problem(self.folder)
        if problem:
            self._warn(f"The {self.kind.noun}s in {self.folder} are not used: {problem}.")
        return problem

    def _write_persistently(self, path: Path, files: Mapping[str, bytes]) -> None:
        """Write; retry if another process removed the folder, or the temporary file before it was locked."""
        for _ in range(_TRIES - 1):
            with contextlib.suppress(FileNotFoundError):
                return self._write(path, files)
        return self._write(path, files)

    def _write(self, path: Path, files: Mapping[str, bytes]) -> None:
        ownership.make_folder(self.folder)
        handle, name = tempfile.mkstemp(prefix=f"{path.stem[:8]}.", suffix=self.kind.temporary, dir=self.folder)
        temporary = Path(name)
        try:
            with os.fdopen(handle, "wb") as file:
                posix.make_private(handle)  # readable for all users: a graph holds nothing private
                posix.lock(handle)  # until it is written
                pack(file, self.kind, path.stem, files)
                file.flush()
                os.fsync(handle)
            _replace(temporary, path)  # Windows renames no file that is open
        except BaseException:
            _unlink(temporary)
            raise
        posix.sync_folder(self.folder)

    def remove(self, key: str) -> bool:
        """Remove one entry; False if there is none."""
        return _unlink(self._path(key))

    def entries(self) -> list[Entry]:
        """Every entry, least recently used first."""
        entries = []
        for path in self._own(self.kind.suffix):
            with contextlib.suppress(OSError):
                stat = path.stat()
                entries.append(Entry(path.name.removesuffix(self.kind.suffix), path, stat.st_size, stat.st_mtime))
        return sorted(entries, key=lambda entry: entry.used)

    def check(self) -> tuple[dict[str, str], list[str]]:
        """The entries that are damaged, with the reason of each, and those that another version wrote; reads every byte."""
        damaged: dict[str, str] = {}
        old: list[str] = []
        for entry in self.entries():
            try:
                unpack(entry.path, self.kind, entry.key)
            except OtherVersion:
                old.append(entry.key)
            except DAMAGE as error:
                damaged[entry.key] = _line(error)
        return damaged, old

    def clear(self) -> int:
        """Remove all entries of a folder that is used, and what killed processes were writing; returns the number of entries."""
        if self.problem():
            return 0
        self._sweep()
        return sum(_unlink(entry.path) for entry in self.entries())

    @property
    def bytes(self) -> int:
        """Total size of all entries."""
        return sum(entry.bytes for entry in self.entries())

    def _path(self, key: str) -> Path:
        if not _KEY.fullmatch(key):
            raise ValueError(f"{key!r} is no key of this store; keys are hexadecimal")
        return self.folder / f"{key}{self.kind.suffix}"

    def _own(self, suffix: str) -> Iterator[Path]:
        """The files that this store wrote, recognised by their names; links and folders are left out."""
        with contextlib.suppress(OSError):
            for path in self.folder.iterdir():
                if path.name.endswith(suffix) and self.kind.owns(path.name) and not path.is_symlink() and path.is_file():
                    yield path

    def _trim(self, newest: Path) -> None:
        self._sweep()
        entries = [entry for entry in self.entries() if entry.path != newest]  # it stays, even if it alone exceeds the bound
        with contextlib.suppress(OSError):
            total = newest.stat().st_size + sum(entry.bytes for entry in entries)
            for entry in entries:
                if total <= self.max_bytes:
                    return
                if _unlink(entry.path):
                    total -= entry.bytes

    def _sweep(self) -> None:
        """Remove the temporary files of killed processes, but none that a running process is writing."""
        for path in self._own(self.kind.temporary):
            with contextlib.suppress(OSError):
                if _is_abandoned(path):
                    _unlink(path)

    def _warn(self, message: str) -> None:
        if message not in self._warned:
            self._warned.add(message)
            log.warning(message)


def open_store(settings: Settings) -> GraphStore:
    """The graph store that the settings describe."""
    return GraphStore(settings.cache_folder, settings.cache_mb << 20)


def open_blobs(settings: Settings, graphs: Path) -> GraphStore:
    """The store of blobs, a folder inside that of the graph store."""
    return GraphStore(graphs / "blobs", settings.blob_mb << 20, BLOBS)


def recipe_store(graphs: Path) -> GraphStore:
    """The store of what int8 has learnt, a folder inside that of the graph store."""
    return GraphStore(graphs / "recipes", _RECIPE_BYTES, RECIPES)


def run_store(graphs: Path) -> GraphStore:
    """The store of what earlier runs have called, a folder inside that of the graph store."""
    return GraphStore(graphs / "runs", _RUN_BYTES, RUNS)


def open_all(settings: Settings) -> tuple[GraphStore, ...]:
    """The graph store that the settings describe, and every store inside its folder."""
    graphs = open_store(settings)
    return graphs, open_blobs(settings, graphs.folder), recipe_store(graphs.folder), run_store(graphs.folder)


def _replace(temporary: Path, path: Path) -> None:
    """Rename; on Windows another process that reads the old file is in the way for a moment."""
    for pause in _PAUSES_S:
        with contextlib.suppress(PermissionError):
            temporary.replace(path)
            return
        time.sleep(pause)
    temporary.replace(path)


def _is_abandoned(path: Path) -> bool:
    """Whether no process is writing a temporary file any more."""
    if time.time() - path.stat().st_mtime > _ABANDONED_AFTER_S:
        return True
    return posix.is_locked(path) is False  # where there are no locks, only the age tells


def _line(error: BaseException) -> str:
    """An error as one line; of an OSError only the system's message."""
    return (error.strerror if isinstance(error, OSError) else None) or (first_line(error) if str(error) else type(error).__name__)


def _unlink(path: Path) -> bool:
    """Remove a file, unless it is another user's; whether it was removed."""
    try:
        if posix.foreign_owner(path.lstat()):
            return False
        path.unlink()
    except OSError:
        return False
    return True
