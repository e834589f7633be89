"""Runs rows one after the other: each picture is written and recorded before the next begins, and a failure ends only its row."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from ov_backend import interrupts
from ov_backend.batch import pictures
from ov_backend.batch.fingerprints import Fingerprints
from ov_backend.batch.journal import Journal, Manifest
from ov_backend.batch.painter import Painted
from ov_backend.batch.plan import work
from ov_backend.batch.row import Row
from ov_backend.errors import first_line
from ov_backend.ui.choices import Choices

log = logging.getLogger(__name__)

#: A row that fails is tried so many times in all.
_TRIES = 2

#: Takes an event: a dict with "event" and what happened.
Report = Callable[[dict[str, Any]], None]


class Paints(Protocol):
    """What makes pictures."""

    def paint(self, row: Row) -> Painted:
        """Make the pictures of a row."""


@dataclass
class Tally:
    """How far a run is, in pictures; ``failed`` and ``rows`` count rows."""

    made: int = 0
    failed: int = 0
    rows: int = 0
    work: float = 0.0


def pending_rows(rows: Iterable[Row], manifest: Manifest, fingerprints: Fingerprints, device: str) -> list[Row]:
    """The rows whose pictures are not there yet, or not whole, or were made with other parameters."""
    return [row for row in rows if not manifest.has(row, row.digest(fingerprints, device))]


class Run:
    """A run into one folder.

    Args:
        folder: of the pictures.
        journal: of the folder.
        paints: makes the pictures.
        fingerprints: of the files that rows name.
        device: that computes.
        report: takes the events.
    """

    def __init__(
        self, folder: Path, journal: Journal, paints: Paints, fingerprints: Fingerprints, device: str, report: Report
    ) -> None:
        self._folder, self._journal, self._paints = folder, journal, paints
        self._fingerprints, self._device, self._report = fingerprints, device, report
        self.tally = Tally()

    def all(self, rows: Sequence[Row], manifest: Manifest) -> Tally:
        """Make the pictures of these rows, in this order.

        Raises:
            OSError: the manifest cannot be written.
            KeyboardInterrupt: the user has interrupted it.
        """
        total, start = sum(work(row) for row in rows), time.monotonic()
        for row in rows:
            if interrupts.interrupted():  # a library may have caught the exception
                raise KeyboardInterrupt
            records = self._row(row)
            old = manifest.entries.get(row.number)
            for name in set(old.files) - set(row.files) if old is not None and records[0]["file"] else ():
                pictures.remove(self._folder / name)
            self._count(row, records)
            self._tell(records, len(rows), total, time.monotonic() - start)
        return self.tally

    def _row(self, row: Row) -> list[dict[str, Any]]:
        """Make one row, once more if it fails; returns what is recorded of it."""
        digest = row.digest(self._fingerprints, self._device)
        for attempt in range(_TRIES):
            start = time.perf_counter()
            try:
                records = self._made(row, digest)
            except Exception as error:  # of any library: it ends this row only
                if interrupts.interrupted():
                    raise KeyboardInterrupt from error
                log.debug("Row %d failed.", row.source, exc_info=True)
                reason = f"{type(error).__name__}: {first_line(error)[:300]}"
                record = {"row": row.number, "source": row.source, "file": None, "seconds": _round(time.perf_counter() - start)}
                records = [{**record, "parameters": digest, "error": reason, "attempts": attempt + 1}]
            else:
                break
        for record in records:
            self._journal.append(record)
        return records

    def _made(self, row: Row, digest: str) -> list[dict[str, Any]]:
        start = time.perf_counter()
        painted = self._paints.paint(row)
        choices = Choices(device=self._device, precision=row.precision)
        names = row.files
        if len(painted.images) != len(names):
            raise ValueError(f"{len(painted.images)} pictures were made instead of {len(names)}")
        hashes = []
        for i, (name, image) in enumerate(zip(names, painted.images)):
            text = row.of_picture(i).as_text(row.checkpoint.stem, choices)
            hashes.append(pictures.write(self._folder, name, pictures.encode(image, text)))
        share = 1 / len(names)
        shared = {
            "seconds": _round((time.perf_counter() - start) * share),
            "sampling_seconds": _round(painted.sampling_seconds * share),
            "prepared_seconds": _round(painted.prepared_seconds * share),
            "work": work(row) * share,
            "precision": row.precision,
            "answered": painted.answered,
            "parameters": digest,
        }
        numbers = {"row": row.number, "source": row.source}
        return [{**numbers, "file": name, "sha256": each, **shared, "error": None} for name, each in zip(names, hashes)]

    def _count(self, row: Row, records: list[dict[str, Any]]) -> None:
        succeeded = records[0]["file"] is not None
        self.tally.rows += 1
        self.tally.made += len(records) if succeeded else 0
        self.tally.failed += not succeeded
        self.tally.work += work(row)

    def _tell(self, records: list[dict[str, Any]], rows: int, total: float, elapsed: float) -> None:
        tally = self.tally
        left = elapsed / tally.work * (total - tally.work)
        progress = {
            "rows_done": tally.rows,
            "rows": rows,
            "failed": tally.failed,
            "pictures_per_hour": round(tally.made / elapsed * 3600, 1) if elapsed else None,
            "seconds_left": round(left, 1),
        }
        for record in records:
            self._report({"event": "failure" if record["file"] is None else "picture", **record, **progress})


def _round(seconds: float) -> float:
    return round(seconds, 4)
