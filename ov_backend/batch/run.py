"""Writes the pictures of rows and records them: each before the next. A failure ends only its row."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from ov_backend import interrupts
from ov_backend.batch import pictures
from ov_backend.batch.fingerprints import Fingerprints
from ov_backend.batch.journal import Journal, Manifest
from ov_backend.batch.make import OPENVINO, Failure, Made, Outcome
from ov_backend.batch.plan import work
from ov_backend.batch.row import Row
from ov_backend.errors import first_line

#: After these errors no other picture can be written either.
_HOPELESS = (errno.ENOSPC, errno.EROFS, errno.ENOENT, errno.EACCES, getattr(errno, "EDQUOT", errno.ENOSPC))

#: Takes an event: a dict with "event" and what happened.
Report = Callable[[dict[str, Any]], None]


class Makes(Protocol):
    """What makes rows: this process, or others."""

    def outcomes(self, rows: Sequence[Row]) -> Iterator[tuple[Row, Outcome]]:
        """Each row once with its outcome, in any order."""


@dataclass
class Tally:
    """How far a run is, in pictures; ``failed`` and ``rows`` count rows.

    ``otherwise`` are those of the made pictures that OpenVINO did not wholly answer in the precision that was asked for.
    """

    made: int = 0
    otherwise: int = 0
    failed: int = 0
    rows: int = 0
    work: float = 0.0


def pending_rows(rows: Iterable[Row], manifest: Manifest, fingerprints: Fingerprints, device: str) -> list[Row]:
    """The rows whose pictures are not there yet, or not whole, or were made with other parameters."""
    return [row for row in rows if not manifest.has(row, row.digest(fingerprints, device))]


class Run:
    """A run into one folder, which this process alone writes to.

    Args:
        folder: of the pictures.
        journal: of the folder.
        makes: makes the pictures.
        fingerprints: of the files that rows name.
        device: that computes.
        report: takes the events.
    """

    def __init__(
        self, folder: Path, journal: Journal, makes: Makes, fingerprints: Fingerprints, device: str, report: Report
    ) -> None:
        self._folder, self._journal, self._makes = folder, journal, makes
        self._fingerprints, self._device, self._report = fingerprints, device, report
        self.tally = Tally()

    def all(self, rows: Sequence[Row], manifest: Manifest) -> Tally:
        """Make the pictures of these rows.

        Raises:
            OSError: the manifest cannot be written, the disk is full, or the folder is gone.
            KeyboardInterrupt: the user has interrupted it.
        """
        total, start = sum(work(row) for row in rows), time.monotonic()
        for row, outcome in self._makes.outcomes(rows):
            if interrupts.interrupted():  # a library may have caught the exception
                raise KeyboardInterrupt
            records = self._records(row, outcome)
            for record in records:
                self._journal.append(record)
            old = manifest.entries.get(row.number)
            for name in set(old.files) - set(row.files) if old is not None and records[0]["file"] else ():
                pictures.remove(self._folder / name)
            self._count(row, records)
            self._tell(records, len(rows), total, time.monotonic() - start)
        return self.tally

    def _records(self, row: Row, outcome: Outcome) -> list[dict[str, Any]]:
        """Write the pictures of a row; returns what is to be recorded of them."""
        if isinstance(outcome, Made):
            start = time.perf_counter()
            try:
                return self._written(row, outcome)
            except OSError as error:
                if error.errno in _HOPELESS:
                    raise
                outcome = Failure(f"{type(error).__name__}: {first_line(error)[:300]}", time.perf_counter() - start, 1)
        common = {"row": row.number, "source": row.source, "file": None, "seconds": _round(outcome.seconds)}
        return [{**common, "parameters": self._digest(row), "error": outcome.reason, "attempts": outcome.attempts}]

    def _written(self, row: Row, made: Made) -> list[dict[str, Any]]:
        hashes = {name: pictures.write(self._folder, name, data) for name, data in zip(row.files, made.files)}
        share = 1 / len(hashes)
        shared = {
            "seconds": _round(made.seconds * share),
            "sampling_seconds": _round(made.sampling_seconds * share),
            "prepared_seconds": _round(made.prepared_seconds * share),
            "work": work(row) * share,
            "precision": row.precision,
            "answered": made.answered,
            "parameters": self._digest(row),
        }
        numbers = {"row": row.number, "source": row.source}
        return [{**numbers, "file": name, "sha256": each, **shared, "error": None} for name, each in hashes.items()]

    def _digest(self, row: Row) -> str:
        return row.digest(self._fingerprints, self._device)

    def _count(self, row: Row, records: list[dict[str, Any]]) -> None:
        succeeded = records[0]["file"] is not None
        self.tally.rows += 1
        self.tally.made += len(records) if succeeded else 0
        self.tally.otherwise += sum(record["answered"] != OPENVINO for record in records) if succeeded else 0
        self.tally.failed += not succeeded
        self.tally.work += work(row)

    def _tell(self, records: list[dict[str, Any]], rows: int, total: float, elapsed: float) -> None:
        tally = self.tally
        left = elapsed / tally.work * (total - tally.work)
        progress = {
            "rows_done": tally.rows,
            "rows": rows,
            "failed": tally.failed,
            "otherwise": tally.otherwise,
            "pictures_per_hour": round(tally.made / elapsed * 3600, 1) if elapsed else None,
            "seconds_left": round(left, 1),
        }
        for record in records:
            self._report({"event": "failure" if record["file"] is None else "picture", **record, **progress})


def _round(seconds: float) -> float:
    return round(seconds, 4)
