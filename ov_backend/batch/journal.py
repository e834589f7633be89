"""The manifest of a folder: one line of JSON for each picture or failure, written before the next one begins."""

from __future__ import annotations

import contextlib
import json
import os
import stat
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from ov_backend.batch import pictures
from ov_backend.batch.pictures import NAME, sha256
from ov_backend.batch.row import Row
from ov_backend.core import posix
from ov_backend.core.atomic_file import atomic_write
from ov_backend.core.errors import SettingsError

MANIFEST = "manifest.jsonl"
_MAX_LINE_BYTES = 1 << 20
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
        entries: the newest pictures of each row, there or not.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.entries: dict[int, Entry] = {}
        self._replaced: set[str] = set()
        self._seconds = self._work = 0.0
        for record in read_records(folder):
            self.add(record)

    def add(self, record: dict[str, Any]) -> None:
        """Take a record into account; a failure, and a line of somebody else, changes nothing."""
        if not _is_own(record) or not all(isinstance(record.get(name), str) for name in ("file", "sha256", "parameters")):
            return
        entry = self.entries.get(record["row"])
        if entry is None or entry.digest != record["parameters"]:
            self._replaced |= set(entry.files) if entry is not None else set()
            self.entries[record["row"]] = entry = Entry(record["parameters"], {})
        entry.files[record["file"]] = record["sha256"]
        self._measure(record)

    def remove_stale(self) -> None:
        """Remove the pictures of rows that were made again under another name."""
        for name in self._replaced - {name for entry in self.entries.values() for name in entry.files}:
            pictures.remove(self.folder / name)

    def _measure(self, record: dict[str, Any]) -> None:
        values = [record.get(name) for name in ("sampling_seconds", "work")]
        numbers = [value for value in values if isinstance(value, (int, float)) and 0 <= value < 1e15]
        if len(numbers) == len(values):
            self._seconds += numbers[0]
            self._work += numbers[1]

    @property
    def seconds_per_work(self) -> float | None:
        """Seconds that sampling a unit of work took; None before the first picture."""
        return self._seconds / self._work if self._work else None

    def has(self, row: Row, digest: str) -> bool:
        """Whether all pictures of a row are there, with these parameters and whole; reads every byte of them."""
        return self.is_of(row, digest) and all(self._is_whole(name, self.entries[row.number].files) for name in row.files)

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

    def _is_whole(self, name: str, digests: Mapping[str, str]) -> bool:
        try:
            return name in digests and (self.folder / name).is_file() and sha256(self.folder / name) == digests[name]
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


def write_parquet(folder: Path) -> None:
    """Write what became of every row at last into ``manifest.parquet``, where pyarrow is installed."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        return
    types = {int: pyarrow.int64(), str: pyarrow.string(), (int, float): pyarrow.float64()}
    schema = pyarrow.schema([(name, types[kind]) for name, kind in _COLUMNS.items()])
    records = [{name: _value(record, name) for name in _COLUMNS} for last in _last_records(folder) for record in last]
    with atomic_write(folder / "manifest.parquet") as file:
        parquet.write_table(pyarrow.Table.from_pylist(records, schema), file)


def _last_records(folder: Path) -> Iterable[list[dict[str, Any]]]:
    """For each row the last records of its pictures, or of its failure."""
    last: dict[int, list[dict[str, Any]]] = {}
    for record in filter(_is_own, read_records(folder)):
        before = last.get(record["row"], [])
        goes_on = all(each["file"] and each.get("parameters") == record.get("parameters") for each in before)
        kept = [each for each in before if each["file"] != record["file"]] if goes_on and record["file"] else []
        last[record["row"]] = [*kept, record]
    return last.values()


def _value(record: dict[str, Any], name: str) -> Any:
    """A value of a record; None where it has another type, or is a number that Parquet cannot hold."""
    value = record.get(name)
    is_right = isinstance(value, _COLUMNS[name]) and not (isinstance(value, int) and not -_INT64 <= value < _INT64)
    return value if is_right else None


def _is_own(record: dict[str, Any]) -> bool:
    name = record.get("file", "")
    return isinstance(record.get("row"), int) and (name is None or (isinstance(name, str) and NAME.fullmatch(name) is not None))
