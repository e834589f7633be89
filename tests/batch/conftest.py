"""What the tests of batches share."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ov_backend.batch.api import Batch, Options

MakeBatch = Callable[..., Batch]


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
