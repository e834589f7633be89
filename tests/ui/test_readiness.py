"""Networks are prepared once a host is idle; what is asked for last comes first, and a generation is not waited upon for it."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from ov_backend.ui.choices import Choices
from ov_backend.ui.likely import Likely, RequestedShape, likely, request_of
from ov_backend.ui.readiness import spare
from tests.ui.conftest import Host

SHAPE = RequestedShape(64, 64, 1, False)


class Idle(Host):
    """A host with a model, and an engine in which nothing runs."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.dropped = 0
        self.engine = SimpleNamespace(resources=SimpleNamespace(run=None, ahead=SimpleNamespace(cancel=self._drop)))

    def prepares_ahead(self) -> bool:
        return True

    def denoiser(self) -> object:
        return self

    def _drop(self) -> None:
        self.dropped += 1


@pytest.fixture
def idle(tmp_path: Path) -> Idle:
    return Idle(tmp_path)


def test_another_size_takes_the_place_of_what_waits(idle: Idle, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[object] = []
    has_begun, readiness = threading.Event(), idle.controller.readiness

    def prepare(asked: RequestedShape | None) -> None:
        begun.append(asked)
        has_begun.set()
        idle.go.wait(60)

    monkeypatch.setattr(readiness, "_prepare", prepare)
    sizes = [SHAPE._replace(width=side) for side in (64, 128, 192)]
    readiness.size_changed(sizes[0])
    thread = readiness._thread
    assert has_begun.wait(60)
    for size in sizes[1:]:
        readiness.size_changed(size)
    assert readiness._thread is thread, "one thread for all"
    assert idle.dropped == 2, "at each change"
    idle.go.set()
    readiness.wait()
    assert begun == [sizes[0], sizes[2]]


def test_a_model_with_which_a_picture_was_made_meanwhile_is_left_alone(idle: Idle, monkeypatch: pytest.MonkeyPatch) -> None:
    """The picture has prepared what it called, and its figures are the news."""
    found = Likely("64x64", 1, True, Choices(), ())
    monkeypatch.setattr("ov_backend.engine.ahead.history.kind_of", lambda module: "ab")
    monkeypatch.setattr("ov_backend.ui.readiness.likely", lambda runs, asked=None: found)
    readiness = idle.controller.readiness
    assert readiness._likely(None) == found
    idle.status.begin("Making 64x64")
    idle.status.end()
    assert readiness._likely(None) is None
    assert readiness._likely(SHAPE) == found
    monkeypatch.setattr(readiness, "_run", lambda: None)
    readiness.model_loaded()
    assert readiness._likely(None) == found


def test_spare_work_does_not_stand_beside_a_generation(idle: Idle) -> None:
    with idle.lock, spare(idle) as free:
        assert not free
    with spare(idle) as free, spare(idle) as once_more:
        assert (free, once_more) == (True, False)
    with pytest.raises(ZeroDivisionError), idle.lock:
        raise ZeroDivisionError
    with spare(idle) as free:
        assert free


def test_spare_work_waits_as_long_as_it_is_asked_to(idle: Idle) -> None:
    asked = list[bool]()

    def waits() -> bool:
        asked.append(len(asked) < 2)
        return asked[-1]

    with idle.lock, spare(idle, waits) as free:
        assert not free
    assert asked == [True, True, False]


def test_while_no_model_is_loaded_nothing_is_spare_and_the_lock_is_free(tmp_path: Path) -> None:
    host = Host(tmp_path)
    with spare(host) as free:
        assert not free
        assert not host.lock.locked()


def run(request: str) -> SimpleNamespace:
    return SimpleNamespace(request=request, calls=(request,))


def test_the_likely_generation_is_the_last_one_or_the_last_of_this_shape_that_ran_as_it() -> None:
    f32 = Choices(precision="f32")
    last, wide = request_of(SHAPE, True, f32), request_of(SHAPE._replace(width=128), False, f32, hires=2.0)
    other = request_of(SHAPE._replace(width=192), True, Choices())
    runs = [run(last), run(wide), run(other)]
    assert likely(runs) == Likely("64x64", 1, True, f32, (last,))
    assert likely(runs, SHAPE._replace(width=128)) == Likely("128x64", 1, False, f32, (wide,))
    assert likely(runs, SHAPE._replace(width=192)) is None, "it ran elsewhere"
    assert likely(runs, SHAPE._replace(from_picture=True)) is None
    assert likely([]) is None


def test_runs_of_accelerate_are_passed_over() -> None:
    """They lie in the same store, and say nothing of what ran where."""
    ours = request_of(SHAPE, True, Choices())
    found = likely([run(""), run(json.dumps({"width": "64"})), run(ours)])
    assert found is not None
    assert found.calls == (ours,)
