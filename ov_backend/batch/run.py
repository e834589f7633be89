"""Writes the pictures of rows and records them: each before the next. A failure ends only its row."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ov_backend.batch import pictures
from ov_backend.batch.executor import OPENVINO, RowResult, reason_of
from ov_backend.batch.journal import Journal, Manifest
from ov_backend.batch.plan import work
from ov_backend.batch.row import Row
from ov_backend.core import interrupts

#: After these errors no other picture can be written either.
_HOPELESS = (errno.ENOSPC, errno.EROFS, errno.ENOENT, errno.EACCES, getattr(errno, "EDQUOT", errno.ENOSPC))

#: Takes an event: a dict with "event" and what happened.
Report = Callable[[dict[str, Any]], None]


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


class Run:
    """A run into one folder, which this process alone writes to.

    Args:
        manifest: of the folder.
        journal: of the folder.
        digests: of the rows, by their numbers.
        report: takes the events.
    """

    def __init__(self, manifest: Manifest, journal: Journal, digests: Mapping[int, str], report: Report) -> None:
        self._folder, self._manifest, self._journal = manifest.folder, manifest, journal
        self._digests, self._report = digests, report
        self.tally = Tally()

    def all(self, rows: Sequence[Row], results: Iterable[tuple[Row, RowResult]]) -> None:
        """Write and record what became of these rows, in any order.

        Raises:
            OSError: the manifest cannot be written, the disk is full, or the folder is gone.
            KeyboardInterrupt: the user has interrupted it.
        """
        total, start = sum(work(row) for row in rows), time.monotonic()
        for row, result in results:
            if interrupts.interrupted():  # a library may have caught the exception
                raise KeyboardInterrupt
            records = self._records(row, result)
            for record in records:
                self._journal.append(record)
                self._manifest.add(record)
            self._count(row, records)
            self._tell(records, len(rows), total, time.monotonic() - start)

    def _records(self, row: Row, result: RowResult) -> list[dict[str, Any]]:
        """Write the pictures of a row; returns what is to be recorded of them."""
        try:
            hashes = {name: pictures.write(self._folder, name, data) for name, data in zip(row.files, result.files)}
        except OSError as error:
            if error.errno in _HOPELESS:
                raise
            result = replace(result, error=reason_of(error))
        numbers: dict[str, Any] = {"row": row.number, "source": row.source}
        if result.error is not None:
            facts = {"seconds": _round(result.seconds), "parameters": self._digests[row.number]}
            return [{**numbers, "file": None, **facts, "error": result.error, "attempts": result.attempts}]
        share = 1 / len(hashes)
        shared = {
            "seconds": _round(result.seconds * share),
            "sampling_seconds": _round(result.sampling_seconds * share),
            "prepared_seconds": _round(result.prepared_seconds * share),
            "work": work(row) * share,
            "precision": row.precision,
            "answered": result.answered,
            "parameters": self._digests[row.number],
            "error": None,
        }
        return [{**numbers, "file": name, "sha256": each, **shared} for name, each in hashes.items()]

    def _count(self, row: Row, records: list[dict[str, Any]]) -> None:
        made = [record for record in records if not record["error"]]
        self.tally.rows += 1
        self.tally.made += len(made)
        self.tally.otherwise += sum(record["answered"] != OPENVINO for record in made)
        self.tally.failed += not made
        self.tally.work += work(row)

    def _tell(self, records: list[dict[str, Any]], rows: int, total: float, elapsed: float) -> None:
        tally = self.tally
        left = elapsed / tally.work * (total - tally.work)
        progress = {
            "rows_done": tally.rows,
            "rows": rows,
            "made": tally.made,
            "failed": tally.failed,
            "otherwise": tally.otherwise,
            "pictures_per_hour": round(tally.made / elapsed * 3600, 1) if elapsed else None,
            "seconds_left": round(left, 1),
        }
        for record in records:
            self._report({"event": "failure" if record["error"] else "picture", **record, **progress})


def _round(seconds: float) -> float:
    return round(seconds, 4)
