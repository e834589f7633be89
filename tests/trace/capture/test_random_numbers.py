"""Random numbers: a trace gives back what it draws, and is repeated where another thread draws meanwhile."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable

import numpy as np
import pytest
import torch

from ov_backend import Settings
from ov_backend.trace.capture.forward import Disturbed, undisturbed
from ov_backend.trace.capture.observer import Observer
from tests.helpers.small import engine_for

Strict = Callable[..., Settings]
X = torch.linspace(-1, 1, 12).reshape(3, 4)


@pytest.mark.parametrize("draw", [random.random, lambda: random.randint(0, 9), lambda: random.gauss(0, 1)])
def test_random_numbers_that_are_drawn_are_seen_and_given_back(draw: Callable[[], object]) -> None:
    state = random.getstate()
    with Observer() as observer:
        draw()
    assert observer.effects == ["draws random numbers of Python or numpy"]
    assert not observer.disturbed
    assert random.getstate() == state


def test_random_numbers_of_another_thread_disturb_a_trace_and_are_no_effect_of_it() -> None:
    go, done = list[bool](), list[bool]()

    def draw() -> None:
        while not go:
            time.sleep(0.001)
        random.random()
        done.append(True)

    thread = threading.Thread(target=draw)
    thread.start()
    with Observer() as observer:
        go.append(True)
        while not done:
            pass
        state = random.getstate()
    thread.join()
    assert observer.disturbed
    assert observer.effects == []
    assert random.getstate() == state, "the other thread's numbers are not drawn twice"


def test_a_draw_that_no_profiler_sees_disturbs_as_well() -> None:
    with Observer() as observer:
        list(map(random.getrandbits, [3]))
    assert observer.disturbed


def test_random_numbers_of_numpy_disturb_and_are_given_back() -> None:
    state = np.random.get_state()[2]
    with Observer() as observer:
        np.random.rand()
    assert observer.disturbed
    assert observer.effects == []
    assert np.random.get_state()[2] == state


def test_a_disturbed_trace_is_tried_again_but_not_for_ever() -> None:
    attempts = []

    def attempt(disturbed: int) -> int:
        attempts.append(disturbed)
        if len(attempts) <= disturbed:
            raise Disturbed("random numbers")
        return len(attempts)

    assert undisturbed(lambda: attempt(7)) == 8  # a WebUI that starts draws for seconds
    attempts.clear()
    with pytest.raises(Disturbed):
        undisturbed(lambda: attempt(99))


def _of_a_new_generator(x: torch.Tensor, held: torch.Generator) -> torch.Tensor:
    return x + torch.randn(3, 4, generator=torch.Generator().manual_seed(3))


def _of_a_held_generator(x: torch.Tensor, held: torch.Generator) -> torch.Tensor:
    return x + torch.rand(3, 4, generator=held)


def _after_a_seed(x: torch.Tensor, held: torch.Generator) -> torch.Tensor:
    torch.manual_seed(3)
    return x + torch.randn_like(x)


def _in_a_fork(x: torch.Tensor, held: torch.Generator) -> torch.Tensor:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return x + torch.randn_like(x)


def _of_the_seed(x: torch.Tensor, held: torch.Generator) -> torch.Tensor:
    return x * float(torch.initial_seed() % 97)


class Calling(torch.nn.Module):
    def __init__(self, function: Callable[[torch.Tensor, torch.Generator], torch.Tensor]) -> None:
        super().__init__()
        self.function, self.held = function, torch.Generator().manual_seed(5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x, self.held)


_GENERATORS = [_of_a_new_generator, _of_a_held_generator, _after_a_seed, _in_a_fork, _of_the_seed]


@pytest.mark.parametrize("forward", _GENERATORS, ids=lambda function: function.__name__.strip("_").replace("_", " "))
def test_a_forward_that_seeds_a_generator_stays_in_pytorch(
    strict: Strict, forward: Callable[[torch.Tensor, torch.Generator], torch.Tensor]
) -> None:
    module, reference = Calling(forward), Calling(forward)
    network = engine_for(strict(fallback="pytorch"), module)
    torch.manual_seed(0)
    expected = [reference(X) for _ in range(3)]
    state = torch.get_rng_state()
    torch.manual_seed(0)
    torch.testing.assert_close([network(X) for _ in range(3)], expected)
    assert network.statistics.calls == 0
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(module.held.get_state(), reference.held.get_state())
