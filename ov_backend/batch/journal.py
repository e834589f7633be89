"""The manifest of a folder: one line of JSON for each picture or failure, written before the next one begins."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import stat
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from ov_backend import posix
from ov_backend.atomic_file import atomic_write
from ov_backend.batch import pictures
from ov_backend.batch.fingerprints import sha256
from ov_backend.batch.pictures import NAME
from ov_backend.batch.row import Row
from ov_backend.errors import SettingsError

MANIFEST = "manifest.jsonl"
_MAX_LINE_BYTES = 1 << 20
_RECORDS_AT_ONCE = 10_000
_FLUSH_S = 1.0
_INT64 = 1 << 63
#: How every manifest begins.
_FIRST_BYTES = b'{"row": '
#: Fields of a record and their types.
_COLUMNS: dict[str, Any] = {
    "row": int,
    "source": int,
    "file": str,
    "sha256": str,
    "seconds": (int, float),
    "sampling_seconds": (int, float),
    "prepared_seconds": (int, float),
    "work": (int, float),
    "precision": str,
    "answered": str,
    "parameters": str,
    "error": str,
    "attempts": int,
}


@dataclass(slots=True)
class Entry:
    """What the manifest has on a row: the digest of its parameters, and its files with their SHA-256."""

    digest: str
    files: dict[str, str]


class Manifest:
    """What a folder's manifest says.

    Attributes:
        entries: by row.
        stale: files of rows that were made again under another name.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.entries: dict[int, Entry] = {}
        self.stale: set[str] = set()
        self._warm, self._all = [0.0, 0.0], [0.0, 0.0]
        for record in read_records(folder):
            self._add(record)
        self.stale -= {name for entry in self.entries.values() for name in entry.files}

    def _add(self, record: dict[str, Any]) -> None:
        number, digest, name, digest_of_file = (record.get(key) for key in ("row", "parameters", "file", "sha256"))
        if not isinstance(number, int) or not isinstance(name, str) or not NAME.fullmatch(name):
            return  # a failure, or a line of somebody else
        if not isinstance(digest, str) or not isinstance(digest_of_file, str):
            return
        entry = self.entries.get(number)
        if entry is None or entry.digest != digest:
            self.stale |= set(entry.files) if entry is not None else set()
            self.entries[number] = Entry(digest, {name: digest_of_file})
        else:
            entry.files[name] = digest_of_file
        self._measure(record)

    def _measure(self, record: dict[str, Any]) -> None:
        names = ("sampling_seconds", "prepared_seconds", "work")
        values = [value for name in names if isinstance(value := record.get(name), (int, float)) and 0 <= value < 1e15]
        if len(values) < len(names):
            return
        seconds, prepared, amount = values
        for sums in [self._all, *([self._warm] if prepared < seconds / 10 else [])]:
            sums[0] += seconds
            sums[1] += amount

    @property
    def seconds_per_work(self) -> float | None:
        """Seconds that a unit of work took, in pictures whose networks were ready if there are any; None before the first."""
        sums = self._warm if self._warm[1] else self._all
        return sums[0] / sums[1] if sums[1] else None

    def has(self, row: Row, digest: str) -> bool:
        """Whether all pictures of a row are there, with these parameters and whole; reads every byte of them."""
        entry = self.entries.get(row.number)
        if entry is None or entry.digest != digest:
            return False
        return all(name in entry.files and self._is_whole(name, entry.files[name]) for name in row.files)

    def is_of(self, row: Row, digest: str) -> bool:
        """Whether the newest pictures of a row, there or not, were made with these parameters."""
        entry = self.entries.get(row.number)
        return entry is not None and entry.digest == digest

    def outdated(self, row: Row, digest: str) -> int:
        """The number of pictures of a row that are there and were made with other parameters."""
        entry = self.entries.get(row.number)
        if entry is None or entry.digest == digest:
            return 0
        return sum((self.folder / name).is_file() for name in entry.files)

    def _is_whole(self, name: str, digest: str) -> bool:
        path = self.folder / name
        try:
            return path.is_file() and sha256(path) == digest
        except OSError:
            return False


def read_records(folder: Path) -> Iterator[dict[str, Any]]:
    """The records of a folder's manifest; lines that a killed process left unfinished are skipped."""
    with contextlib.suppress(FileNotFoundError), (folder / MANIFEST).open("rb") as file:
        while line := file.readline(_MAX_LINE_BYTES):
            with contextlib.suppress(ValueError, RecursionError):
                record = json.loads(line)
                if isinstance(record, dict):
                    yield record


def check_folder(folder: Path) -> None:
    """Check that nothing in a folder would be taken for a batch's own, and so be replaced or removed.

    Raises:
        SettingsError: it is no folder, it has a manifest that is none of a batch, or no manifest and files with the names of a
            batch's own.
    """
    advice = "give another folder as --out, or move what is in it"
    try:
        mode = (folder / MANIFEST).lstat().st_mode
    except NotADirectoryError:
        raise SettingsError(f"{folder} is no folder, or is below a file; give a folder as --out.") from None
    except FileNotFoundError:
        mine = sorted(path.name for path in folder.iterdir() if pictures.is_own_name(path.name)) if folder.is_dir() else []
        if mine:
            what = f"{folder} holds {mine[0]}, and no {MANIFEST} that says which batch has made it"
            raise SettingsError(f"{what}; {advice}.") from None
        return
    if not stat.S_ISREG(mode):
        raise SettingsError(f"{MANIFEST} in {folder} is no ordinary file; {advice}.")
    with (folder / MANIFEST).open("rb") as file:
        first = file.readline(len(_FIRST_BYTES)).rstrip(b"\n")
    if not _FIRST_BYTES.startswith(first):  # a killed process may have written a part of it
        raise SettingsError(f"{MANIFEST} in {folder} is not the manifest of a batch; {advice}.")


class Journal:
    """Appends to the manifest of a folder, which no other process can write to meanwhile.

    Raises:
        SettingsError: another process is writing to the folder.
        OSError: the file cannot be written.
    """

    def __init__(self, folder: Path) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
        self._folder, self._flushed = folder, 0.0
        self._handle = os.open(folder / MANIFEST, flags, 0o644)
        try:
            if not posix.try_lock(self._handle):
                raise SettingsError(f"Another process is writing to {folder}; wait until it has ended, or give another --out.")
            self._end_line()
        except BaseException:
            os.close(self._handle)
            raise

    def _end_line(self) -> None:
        """End the line that a killed process left unfinished; it counts as none."""
        size = os.fstat(self._handle).st_size
        if size:
            os.lseek(self._handle, size - 1, os.SEEK_SET)
            if os.read(self._handle, 1) != b"\n":
                os.write(self._handle, b"\n")

    def append(self, record: dict[str, Any]) -> None:
        """Write a record; every second the records are flushed to the disk, with the names of the pictures.

        A killed process loses no record. After a power failure, pictures of the last second may be made again.

        Raises:
            OSError: it cannot be written.
        """
        line = json.dumps(record, ensure_ascii=False).encode("utf-8", "backslashreplace") + b"\n"
        while line:
            line = line[os.write(self._handle, line) :]
        if time.monotonic() - self._flushed >= _FLUSH_S:
            self._flush()

    def _flush(self) -> None:
        posix.sync_folder(self._folder)
        os.fsync(self._handle)
        self._flushed = time.monotonic()

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            self._flush()
        finally:
            os.close(self._handle)


def write_parquet(folder: Path) -> Path | None:
    """Write what became of every row at last into ``manifest.parquet``; None where pyarrow is not installed.

    The manifest is read twice, so that no more than :data:`_RECORDS_AT_ONCE` of its records are in memory.
    """
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        return None
    chosen = {place for _, files in _last_records(folder).values() for place in files.values()}
    records = (record for place, record in enumerate(read_records(folder)) if place in chosen)
    types = {int: pyarrow.int64(), str: pyarrow.string(), (int, float): pyarrow.float64()}
    schema = pyarrow.schema([(name, types[kind]) for name, kind in _COLUMNS.items()])
    path = folder / "manifest.parquet"
    with atomic_write(path) as file, parquet.ParquetWriter(file, schema) as writer:
        while some := list(itertools.islice(records, _RECORDS_AT_ONCE)):
            writer.write_table(pyarrow.table(_columns(some), schema))
    return path


def _last_records(folder: Path) -> dict[int, tuple[Any, dict[str | None, int]]]:
    """For each row what its last record depends on, and the places of the records of its files; None is a failure."""
    last: dict[int, tuple[Any, dict[str | None, int]]] = {}
    for place, record in enumerate(read_records(folder)):
        if not _is_own(record):
            continue
        row, name, digest = record["row"], record["file"], record.get("parameters")
        before, files = last.get(row, (None, {}))
        goes_on = digest == before and name is not None and None not in files
        last[row] = digest, {**files, name: place} if goes_on else {name: place}
    return last


def _columns(records: Sequence[dict[str, Any]]) -> dict[str, list[Any]]:
    """The values of every column; those of another type, and numbers that Parquet cannot hold, are None."""

    def value_of(record: dict[str, Any], name: str, kind: Any) -> Any:
        value = record.get(name)
        if not isinstance(value, kind) or (isinstance(value, int) and not -_INT64 <= value < _INT64):
            return None
        return value

    return {name: [value_of(record, name, kind) for record in records] for name, kind in _COLUMNS.items()}


def _is_own(record: dict[str, Any]) -> bool:
    name = record.get("file", "")
    return isinstance(record.get("row"), int) and (name is None or (isinstance(name, str) and NAME.fullmatch(name) is not None))
