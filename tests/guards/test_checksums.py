"""When everything is read again, and what is found by that."""

from __future__ import annotations

import gc

import pytest
import torch

from ov_backend.guards import checksums
from ov_backend.guards.checksums import Checksums, Readings


class Clock:
    """A clock that stands still but for :attr:`now`; each reading takes a second."""

    def __init__(self) -> None:
        self.now = 0.0
        self.readings = 0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    read = checksums._in_threads

    def reading(function: object, values: object) -> object:
        clock.now += 1
        clock.readings += 1
        return read(function, values)  # type: ignore[arg-type]

    monkeypatch.setattr(checksums, "time", clock)
    monkeypatch.setattr(checksums, "_in_threads", reading)
    return clock


def test_reading_again_takes_a_hundredth_of_the_time_and_is_sooner_where_a_run_begins(clock: Clock) -> None:
    known = Checksums()
    known.of({"x": torch.ones(9)})
    known.read_again(always=True)
    readings = clock.readings
    for seconds, starts, due in ((19, False, False), (0.5, True, False), (2, True, True), (98, False, False), (3, False, True)):
        clock.now += seconds
        known.read_again(starts=starts)
        assert (clock.readings > readings) is due, (seconds, starts)
        readings = clock.readings


def test_blocks_are_read_as_rarely_as_their_network(clock: Clock) -> None:
    readings = Readings()
    blocks = [Checksums(readings) for _ in range(5)]
    for block in blocks:
        block.of({"x": torch.ones(9)})
        block.read_again(always=True)
    assert readings.seconds() == 5
    before = clock.readings
    for seconds, starts, read in ((91, True, 0), (2, True, 1), (498, False, 0), (3, False, 1)):
        clock.now += seconds
        blocks[0].read_again(starts=starts)
        assert clock.readings - before == read, (seconds, starts)
        before = clock.readings
    del block, blocks[1:]
    gc.collect()
    assert readings.seconds() == 1, "those that are gone do not count"


def test_only_what_changed_is_forgotten() -> None:
    known, tensors = Checksums(), {"x": torch.ones(4096), "y": torch.ones(4096), "gone": torch.ones(4096)}
    before = known.of(tensors)
    del tensors["gone"]
    gc.collect()
    known.read_again(always=True)
    assert known.changes == 0
    tensors["x"].numpy()[77] = 3
    assert known.of(tensors)["x"] is before["x"], "nothing tells of it"
    known.read_again(always=True)
    assert known.changes == 1
    after = known.of(tensors)
    assert after["x"].name != before["x"].name
    assert after["y"] is before["y"]


LAYOUTS = (lambda x: x, lambda x: x.t(), lambda x: x[::2, 1:], lambda x: x.to(torch.bfloat16), lambda x: x + 1j)


@pytest.mark.parametrize("make", LAYOUTS, ids=("plain", "transposed", "strided", "bfloat16", "complex"))
def test_every_layout_is_read(make: object) -> None:
    tensor = make(torch.randn(70, 50))  # type: ignore[operator]
    known = Checksums()
    known.of({"x": tensor})
    known.read_again(always=True)
    assert known.changes == 0
    tensor.data[3, 3] += 1
    known.read_again(always=True)
    assert known.changes == 1


def test_threads_take_turns_and_keep_the_order() -> None:
    assert checksums._in_threads(lambda number: number + 1, range(999)) == list(range(1, 1000))
    with pytest.raises(ZeroDivisionError):
        checksums._in_threads(lambda number: 1 / number, range(-500, 500))
