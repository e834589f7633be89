"""What is collected over the calls of a picture."""

from __future__ import annotations

from functools import partial

from ov_backend.int8.calibration import MAX_CALLS, MIN_CALLS, SAMPLES, Calibration
from ov_backend.model.transformations.quantize import Range


def ranges(low: float, high: float) -> dict[str, Range]:
    return {"a": Range(low, high)}


def test_ranges_grow_over_the_calls() -> None:
    calibration: Calibration[int] = Calibration()
    calibration.observer()(ranges(-1, 1))
    calibration.observer()(ranges(-3, 0.5))
    assert calibration.ranges == ranges(-3, 1)


def test_a_call_that_is_not_finite_has_no_ranges() -> None:
    calibration: Calibration[int] = Calibration()
    calibration.observer()(ranges(-1, 1))
    calibration.observer()(ranges(-1, float("inf")))
    assert calibration.ranges == ranges(-1, 1)


def test_few_calls_are_kept_and_they_are_spread_over_all() -> None:
    calibration: Calibration[int] = Calibration()
    most = 0
    for i in range(50):
        calibration.count(partial(int, i))
        most = max(most, len(calibration._samples))
    samples = calibration.samples
    assert len(samples) == SAMPLES
    assert most <= 2 * SAMPLES
    assert samples[0] == 0
    assert samples[-1] >= 40


def test_it_is_complete_when_the_next_picture_begins() -> None:
    calibration: Calibration[int] = Calibration()
    for i in range(MIN_CALLS):
        assert not calibration.is_complete(ended=True)
        calibration.count(partial(int, i))
    assert calibration.is_complete(ended=True)
    assert not calibration.is_complete(ended=False)
    for i in range(MAX_CALLS):
        calibration.count(partial(int, i))
    assert calibration.is_complete(ended=False)
