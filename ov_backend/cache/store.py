"""The store of captured graphs on disk. It knows files, not compilers: a key goes in with a few named byte strings.

One entry is one zip file, so that it appears whole or not at all: it is written under a temporary name, flushed to
the disk and renamed. Nothing in an entry is ever executed or unpickled; sizes are checked before they are believed,
and every byte is under a checksum. The store is bounded in size (least recently used goes first) and removes only
files that it wrote itself. Whatever is wrong with an entry or with the folder is a miss and one warning.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from ov_backend.cache.entry_file import DAMAGE, GRAPHS, Kind, pack, unpack

try:
    import fcntl
except ImportError:  # not on Windows; there, what a killed process left goes by its age
    fcntl = None  # type: ignore[assignment]

log = logging.getLogger(__name__)

_KEY = re.compile(r"[0-9a-f]+")
_ABANDONED_AFTER_S = 3600.0
_TRIES = 8


@dataclass(frozen=True)
class Entry:
    """What the store knows of one entry without reading it."""

    key: str
    path: Path
    bytes: int
    used: float


class GraphStore:
    """A folder of graphs.

    Args:
        folder: where the entries are; made at the first write.
        max_bytes: bound of all entries together.
        kind: what the entries are.
    """

    def __init__(self, folder: Path, max_bytes: int = 1 << 30, kind: Kind = GRAPHS) -> None:
        self.folder = Path(folder)
        self.max_bytes = max_bytes
        self.kind = kind
        self._warned: set[str] = set()

    def get(self, key: str) -> dict[str, bytes] | None:
        """The byte strings stored under ``key``, or None. A damaged or foreign file is a miss, and is warned of."""
        path = self._path(key)
        try:
            files = unpack(path, self.kind, key)
        except FileNotFoundError:
            return None
        except DAMAGE as error:
            self._warn(f"Ignoring the stored {self.kind.what} {path}: {_line(error)}. It will be made anew.")
            return None
        with contextlib.suppress(OSError):  # a read-only store serves as well, only without its order of use
            os.utime(path)
        return files

    def put(self, key: str, files: Mapping[str, bytes]) -> bool:
        """Store byte strings under ``key``, whole or not at all; False (and one warning) where that is impossible."""
        path = self._path(key)
        try:
            self._write_persistently(path, files)
        except (OSError, ValueError) as error:
            self._warn(f"Cannot store a {self.kind.what} in {self.folder}: {_line(error)}. It is kept in memory only.")
            return False
        self._trim(path)
        return True

    def _write_persistently(self, path: Path, files: Mapping[str, bytes]) -> None:
        """Write; again, if another process took the folder, or the temporary file before it was locked, away just then."""
        for _ in range(_TRIES - 1):
            with contextlib.suppress(FileNotFoundError):
                return self._write(path, files)
        return self._write(path, files)

    def _write(self, path: Path, files: Mapping[str, bytes]) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f"{path.stem[:8]}.", suffix=self.kind.temporary, dir=self.folder)
        temporary = Path(name)
        try:
            with os.fdopen(handle, "wb") as file:
                if hasattr(os, "fchmod"):
                    os.fchmod(handle, 0o644)  # of use to everybody: there is nothing private in a graph
                _lock(handle)  # for as long as it is written; the system lets go of it if this process is killed
                pack(file, self.kind, path.stem, files)
                file.flush()
                os.fsync(handle)
                temporary.replace(path)
        except OSError:
            _unlink(temporary)
            raise
        _sync_folder(self.folder)

    def remove(self, key: str) -> bool:
        """Remove one entry; False where there is none."""
        return _unlink(self._path(key))

    def entries(self) -> list[Entry]:
        """Every entry, least recently used first."""
        found = []
        for path in self._own(self.kind.suffix):
            with contextlib.suppress(OSError):
                stat = path.stat()
                found.append(Entry(path.name.removesuffix(self.kind.suffix), path, stat.st_size, stat.st_mtime))
        return sorted(found, key=lambda e: e.used)

    def verify(self) -> dict[str, str]:
        """The entries that cannot be used, with the reason of each; reads every byte."""
        bad = {}
        for entry in self.entries():
            try:
                unpack(entry.path, self.kind, entry.key)
            except DAMAGE as error:
                bad[entry.key] = _line(error)
        return bad

    def clear(self) -> int:
        """Remove all entries, and half-written ones that nobody is writing any more; how many there were."""
        self._sweep()
        return sum(_unlink(entry.path) for entry in self.entries())

    @property
    def bytes(self) -> int:
        """Size of all entries together."""
        return sum(entry.bytes for entry in self.entries())

    def _path(self, key: str) -> Path:
        if not _KEY.fullmatch(key):
            raise ValueError(f"{key!r} is no key of this store; keys are hexadecimal")
        return self.folder / f"{key}{self.kind.suffix}"

    def _own(self, suffix: str) -> Iterator[Path]:
        """The files that this store wrote: by their names, and neither links nor folders."""
        with contextlib.suppress(OSError):
            for path in self.folder.iterdir():
                if path.name.endswith(suffix) and self.kind.owns(path.name) and not path.is_symlink() and path.is_file():
                    yield path

    def _trim(self, newest: Path) -> None:
        self._sweep()
        entries = [entry for entry in self.entries() if entry.path != newest]  # it stays, even alone over the bound
        with contextlib.suppress(OSError):
            total = newest.stat().st_size + sum(entry.bytes for entry in entries)
            for entry in entries:
                if total <= self.max_bytes:
                    return
                if _unlink(entry.path):
                    total -= entry.bytes

    def _sweep(self) -> None:
        """Remove what killed processes left half written, and nothing that a living one is writing."""
        for path in self._own(self.kind.temporary):
            with contextlib.suppress(OSError):
                if _is_abandoned(path):
                    path.unlink()

    def _warn(self, message: str) -> None:
        if message not in self._warned:
            self._warned.add(message)
            log.warning(message)


def _lock(handle: int) -> None:
    """Mark a temporary file as being written, where the file system can do that."""
    if fcntl is not None:
        with contextlib.suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _is_abandoned(path: Path) -> bool:
    """Whether nobody is writing a temporary file any more."""
    if time.time() - path.stat().st_mtime > _ABANDONED_AFTER_S:
        return True
    if fcntl is None:
        return False
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # somebody holds it, or the file system has no locks
        return False
    finally:
        os.close(handle)
    return True


def _sync_folder(folder: Path) -> None:
    """Make a rename last through a power failure, where a folder can be flushed."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _line(error: BaseException) -> str:
    """An error in one line; the system's own words where it is one of the system's."""
    text = (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
    return " ".join(text.split())


def _unlink(path: Path) -> bool:
    try:
        path.unlink()
    except OSError:
        return False
    return True
