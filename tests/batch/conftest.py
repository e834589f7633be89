"""What the tests of batches share."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ov_backend.batch.api import Batch, Options, Result
from ov_backend.batch.run import Report
from tests.batch.standin import StandIn

MakeBatch = Callable[..., Batch]
#: The rows of a job.
JOB: list[dict[str, Any]] = [{"prompt": f"picture {i}", "seed": i, "size": "64x64"} for i in range(1, 6)]


@pytest.fixture
def make_batch(checkpoint: Path, tmp_path: Path) -> MakeBatch:
    """A batch of rows, or of the text of a job file, into the folder ``out``, with the small checkpoint in f32."""

    def make(rows: list[dict[str, Any]] | str, name: str = "job.jsonl", **options: Any) -> Batch:
        chosen = {"checkpoint": checkpoint, "precision": "f32", "cache_dir": str(tmp_path / "graphs"), **options}
        if isinstance(rows, list):
            rows = "\n".join(json.dumps(row) for row in rows)
        path = tmp_path / name
        path.write_text(rows, encoding="utf-8")
        return Batch(path, tmp_path / "out", Options(**chosen))

    return make


def names(folder: Path) -> list[str]:
    """The pictures in a folder."""
    return sorted(path.name for path in folder.glob("*.png"))


@pytest.fixture
def run(make_batch: MakeBatch) -> Any:
    """Run a job, of which pictures may be replaced."""

    def start(renderer: StandIn, rows: list[dict[str, Any]] = JOB, report: Report = lambda event: None, **options: Any) -> Result:
        return make_batch(rows, **{"replace": True, **options}).run(report, renderer)

    return start
