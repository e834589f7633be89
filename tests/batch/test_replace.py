"""A folder with other pictures, and a job with bad rows: nothing is replaced or left out unless that is asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("diffusers")

from ov_backend.core.errors import JobError, SettingsError
from tests.batch.conftest import JOB, names
from tests.batch.standin import StandIn


def test_pictures_of_another_job_stay_unless_their_replacement_is_asked_for(run: Any, tmp_path: Path) -> None:
    run(StandIn(), JOB[:2])
    before = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    other = [{"prompt": "something else", "seed": 7, "size": "64x64"}]
    with pytest.raises(SettingsError, match=r"holds 1 picture of another job, and none of this one; give another .* --replace"):
        run(StandIn(), other, replace=False)
    changed = [JOB[0], {**JOB[1], "steps": 3}]
    with pytest.raises(SettingsError, match=r"holds 1 picture of rows that have changed since; give --replace"):
        run(StandIn(), changed, replace=False)
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == before
    assert run(StandIn(), changed).made == 1
    assert run(StandIn(), other).made == 1
    assert names(tmp_path / "out") == ["000001-7.png", "000002-2.png"]


def test_bad_rows_are_left_out_on_request_and_the_others_keep_their_numbers(run: Any, tmp_path: Path) -> None:
    grid = {"prompt": "bad", "steps": "many", "seed": [1, 2, 3], "size": "64x64"}
    events: list[dict[str, Any]] = []
    result = run(StandIn(), [JOB[0], grid, {"seed": -2}, JOB[4]], events.append, skip_bad_rows=True)
    assert (events[0]["left_out"], events[0]["rows"]) == (2, 2)
    assert (result.made, names(tmp_path / "out")) == (2, ["000001-1.png", "000006-5.png"])
    assert run(StandIn(), [JOB[0], {**grid, "steps": 1}, JOB[1], JOB[4]]).made == 4
    with pytest.raises(JobError, match="steps is 'many'"):
        run(StandIn(), [grid], skip_bad_rows=True)
