"""What a comparison measures, on a host whose steps take as long as it says."""

from __future__ import annotations

import itertools
import threading
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from ov_backend.core.errors import Interrupted
from ov_backend.ui import jobs
from ov_backend.ui.choices import Choices
from ov_backend.ui.snapshot import Job
from tests.ui.conftest import Asked, Host


class Steps(Host):
    """A host whose sampler computes each of its steps in so many calls of a network, one second each."""

    calls_of_a_step = 1

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.made: list[tuple[Asked, Choices | None, bool]] = []

    def make(self, request: Asked, choices: Choices | None, ended: Any, steps_only: bool = False) -> Any:
        self.made.append((request, choices, steps_only))
        for step, _ in itertools.product((1, 2, 3), range(self.calls_of_a_step)):
            ended(step, 3)
        return None if steps_only else Image.new("RGB", request.size)


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Steps:
    seconds = itertools.count()
    monkeypatch.setattr(jobs.time, "perf_counter", lambda: float(next(seconds)))
    return Steps(tmp_path)


def control() -> jobs.JobControl:
    return jobs.JobControl(Job("compare", total=2), threading.Event())


@pytest.mark.parametrize("calls", [1, 2])
def test_a_step_ends_with_the_last_call_in_it(host: Steps, calls: int) -> None:
    host.calls_of_a_step = calls
    comparison = jobs.compare(host, control(), Asked((64, 32)), Choices(unet=False))
    assert (comparison.size, comparison.first.step_seconds, comparison.second.step_seconds) == ((64, 32), calls, calls)
    assert [choices and choices.unet for _, choices, _ in host.made] == [None, None, True, True], "each after a warm-up"
    assert comparison.pictures()


def test_before_the_first_picture_steps_are_timed(host: Steps) -> None:
    comparison = jobs.compare(host, control(), None, Choices())
    assert [(choices is None, steps_only) for _, choices, steps_only in host.made] == [(True, True), (False, True)]
    assert comparison.first.step_seconds == 1
    assert not comparison.pictures()


def test_before_the_first_picture_nothing_calibrates_int8(host: Steps) -> None:
    with pytest.raises(jobs.Unavailable, match="Make a picture first"):
        jobs.compare_int8(host, control(), None, Choices())
    assert host.made == []


def test_a_cancelled_job_makes_no_picture(host: Steps) -> None:
    cancelled = control()
    cancelled.cancelled.set()
    for job in (jobs.compare, jobs.compare_int8):
        with pytest.raises(Interrupted):
            job(host, cancelled, Asked(), Choices())
    assert host.made == []
