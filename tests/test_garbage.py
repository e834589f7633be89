"""The garbage collector is paused while a network is prepared, and goes on afterwards."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Iterator

import pytest
import torch

from ov_backend import Settings, garbage
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
