"""The garbage collector is paused while a network is prepared, and goes on afterwards."""

from __future__ import annotations

import gc
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator

import pytest
import torch

from ov_backend import Settings
from ov_backend.core import garbage
from tests.helpers.alone import alone
from tests.helpers.small import Small, engine_for, inputs


@pytest.fixture(autouse=True)
def collecting() -> Iterator[None]:
    assert gc.isenabled()
    yield
    gc.enable()


def test_blocks_may_overlap() -> None:
    with garbage.paused():
        with garbage.paused():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()


def test_blocks_of_two_threads_may_overlap() -> None:
    first_ends, first_ended = threading.Event(), threading.Event()

    def first() -> None:
        with garbage.paused():
            first_begun.set()
            first_ends.wait(10)
        first_ended.set()

    first_begun = threading.Event()
    thread = threading.Thread(target=first)
    thread.start()
    assert first_begun.wait(10)
    with garbage.paused():
        first_ends.set()
        assert first_ended.wait(10)
        assert not gc.isenabled()
    thread.join()
    assert gc.isenabled()


def test_a_collector_that_was_off_stays_off() -> None:
    gc.disable()
    with garbage.paused():
        pass
    assert not gc.isenabled()


def test_an_error_ends_the_pause() -> None:
    with pytest.raises(ValueError, match="in the block"), garbage.paused():
        raise ValueError("in the block")
    assert gc.isenabled()


def test_a_block_pauses_again_where_somebody_has_enabled_it() -> None:
    with garbage.paused():
        gc.enable()
        with garbage.paused():
            assert not gc.isenabled()
    assert gc.isenabled()


def _in_a_child_of_a_pause() -> tuple[bool, bool]:
    """Whether the collector is on in a child process that is forked in a block, and after a block of its own."""
    read, write = os.pipe()
    with garbage.paused():
        if os.fork() == 0:
            on = gc.isenabled()
            with garbage.paused():
                pass
            os.write(write, bytes([on, gc.isenabled()]))
            os._exit(0)
        on, afterwards = os.read(read, 2)
    return bool(on), bool(afterwards)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_child_that_is_forked_in_a_block_collects() -> None:
    assert alone(_in_a_child_of_a_pause) == (True, True)


def test_garbage_is_collected_once_in_a_while_and_where_memory_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    collections = list[None]()
    monkeypatch.setattr(garbage.gc, "collect", lambda: collections.append(None))
    monkeypatch.setattr(garbage._collector, "called_at", float("-inf"))
    garbage.collect(short=False)
    garbage.collect(short=False)
    assert len(collections) == 1
    garbage.collect(short=True)
    assert len(collections) == 2


def test_a_model_in_a_circle_is_gone_when_the_next_one_is_compiled(
    strict: Callable[..., Settings], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(garbage._collector, "called_at", float("-inf"))
    first = Small()
    first.circle = [first]
    weight = weakref.ref(first.matrix.weight)
    gc.disable()
    del first
    assert weight() is not None
    engine_for(strict(), Small(1))(*inputs())
    assert weight() is None


class Asking(Small):
    def forward(self, x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        time.time()  # it stays in PyTorch
        return super().forward(x, ids)


@pytest.mark.parametrize("kind", [Small, Asking])
def test_the_collector_goes_on_after_a_compile_and_after_a_failure(kind: type[Small], strict: Callable[..., Settings]) -> None:
    network = engine_for(strict(fallback="pytorch"), kind())
    network(*inputs())
    assert network.stats()["compiles"] == (kind is Small)
    assert gc.isenabled()
