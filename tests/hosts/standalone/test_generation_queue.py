"""Who has the pipeline, who waits for it, and whom an interruption ends."""

from __future__ import annotations

import threading

import pytest

from ov_backend.core.errors import Interrupted
from ov_backend.hosts.standalone.generation_queue import Turns


def test_an_interruption_is_for_the_present_turn_alone() -> None:
    turns = Turns()
    turns.interrupt()
    with turns.taken():
        assert not turns.is_interrupted()
        turns.interrupt()
        assert turns.is_interrupted()
    with turns.taken():
        assert not turns.is_interrupted()


def test_a_withdrawn_request_ends_its_own_turn() -> None:
    turns, withdrawn = Turns(), threading.Event()
    with turns.taken(withdrawn):
        withdrawn.set()
        assert turns.is_interrupted()
    assert not turns.is_interrupted()


def test_a_withdrawn_request_does_not_wait() -> None:
    turns, withdrawn = Turns(), threading.Event()
    withdrawn.set()
    with turns.taken():
        with pytest.raises(Interrupted, match="withdrawn"), turns.taken(withdrawn):
            pytest.fail("it has a turn beside another one")
        assert not turns.is_interrupted()


def test_spare_work_does_not_stand_beside_a_turn() -> None:
    turns = Turns()
    with turns.taken(), turns.spare() as free:
        assert not free
    with turns.spare() as free, turns.spare() as once_more:
        assert (free, once_more) == (True, False)
    with pytest.raises(ZeroDivisionError), turns.taken():
        raise ZeroDivisionError
    with turns.spare() as free:
        assert free


def test_spare_work_waits_as_long_as_it_is_asked_to() -> None:
    turns, asked = Turns(), list[bool]()

    def waits() -> bool:
        asked.append(len(asked) < 2)
        return asked[-1]

    with turns.taken(), turns.spare(waits) as free:
        assert not free
    assert asked == [True, True, False]
