"""Who has the pipeline, who waits for it, and whom an interruption ends."""

from __future__ import annotations

import threading

import pytest

from ov_backend.core.errors import Interrupted
from ov_backend.hosts.standalone.pipeline_host import Turns


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
