"""Waiting for a network can be stopped within a second; what was begun goes on, and is found by whoever wants it later."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest
import torch

from ov_backend import Settings
from ov_backend.engine.compile_job import CompileJob
from ov_backend.engine.engine import Engine
from ov_backend.engine.network import Network
from ov_backend.engine.worker import Worker
from ov_backend.errors import Interrupted
from tests.helpers.small import Slow, Small, assert_right, inputs, wait

Strict = Callable[..., Settings]


class After:
    """True once some seconds have passed since it was made or reset."""

    def __init__(self, seconds: float) -> None:
        self.until = time.monotonic() + seconds

    def __call__(self) -> bool:
        return time.monotonic() > self.until

    def never(self) -> None:
        self.until = float("inf")


def interrupted(network: Network, *args: torch.Tensor, after: float = 0.3) -> float:
    """Call and interrupt; the seconds from the interruption to the call's return."""
    stop = network.resources.interrupted = After(after)
    with pytest.raises(Interrupted):
        network(*args)
    seconds = time.monotonic() - stop.until
    stop.never()
    return seconds


def slow(settings: Settings, seconds: float = 1.5) -> tuple[Network, Slow]:
    module = Slow(seconds=seconds)
    return Engine(settings).network("net", module), module


def test_trap_22_an_interrupt_returns_within_a_second(strict: Strict) -> None:
    network, module = slow(strict())
    assert interrupted(network, *inputs()) < 1.0
    assert len(network.resources.worker) == 1, "the work was not abandoned but ended"
    assert_right(network, module, *inputs())
    assert (network.statistics.captures, network.statistics.compiles) == (1, 1)


@pytest.mark.parametrize("fallback", ["raise", "pytorch"])
def test_an_interrupt_is_no_fallback(strict: Strict, fallback: str) -> None:
    network, _ = slow(strict(fallback=fallback))
    interrupted(network, *inputs())
    network.resources.worker.wait()
    assert not network.statistics.fallbacks
    assert network.statistics.calls == 0
    assert not network.refusals.errors


def test_an_abandoned_compile_lands_in_both_caches(strict: Strict) -> None:
    network, module = slow(strict())
    interrupted(network, *inputs())
    network.resources.worker.wait()
    assert network.stats()["held"] == 1
    start = time.monotonic()
    assert_right(network, module, *inputs())
    assert time.monotonic() - start < 1.0
    assert network.resources.store is not None
    assert len(network.resources.store.entries()) == 1


def test_calls_of_many_threads_join_one_job(strict: Strict) -> None:
    network, module = slow(strict(), seconds=0.5)
    expected, results = module(*inputs()), []
    threads = [threading.Thread(target=lambda: results.append(network(*inputs()))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 4
    for result in results:
        torch.testing.assert_close(result, expected, rtol=1e-3, atol=1e-4)
    assert (network.statistics.captures, network.statistics.compiles) == (1, 1)


def test_what_was_compiled_between_a_lookup_and_its_request_is_not_compiled_again(strict: Strict) -> None:
    network, module = slow(strict(), seconds=0.1)
    assert_right(network, module, *inputs())
    call = network._binder(inputs(), {})
    request = network._request(call, *network._keys(call))
    ready = CompileJob(network.resources, request, network._job_context).run()
    assert ready is network.resources.compiled.get(network._keys(call)[1])
    assert network.statistics.compiles == 1


def test_another_call_meanwhile_is_right(strict: Strict) -> None:
    network, module = slow(strict(), seconds=0.7)
    interrupted(network, *inputs(8, 8), after=0.1)
    assert_right(network, module, *inputs(12, 12))
    assert_right(network, module, *inputs(8, 8))
    assert network.statistics.captures == 2


def test_the_module_may_be_used_and_changed_during_an_abandoned_capture(strict: Strict) -> None:
    network, module = slow(strict(), seconds=1.0)
    expected = module(*inputs())
    interrupted(network, *inputs(), after=0.1)
    while network.resources.worker:
        assert torch.equal(module(*inputs()), expected), "PyTorch meets the trace's tensors"
        assert all(type(p) is torch.nn.Parameter for p in module.parameters())
    interrupted(network, *inputs(9, 9), after=0.1)
    module.load_state_dict(Small(seed=3).state_dict())  # a checkpoint is loaded in place
    reference = Small(seed=3)
    torch.testing.assert_close(module(*inputs()), reference(*inputs()))
    network.resources.worker.wait()
    assert_right(network, reference, *inputs(9, 9))
    assert_right(network, reference, *inputs(8, 8))


def test_weights_that_change_during_an_abandoned_compile_poison_nothing(strict: Strict) -> None:
    network, module = slow(strict(), seconds=0.6)
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    for _ in range(2):
        interrupted(network, *inputs(), after=0.1)
        with torch.no_grad():
            module.matrix.weight.add_(1)
        network.resources.worker.wait()
        assert network.stats()["held"] == 0, "compiled from weights of two states"
        module.load_state_dict(before)
    assert_right(network, module, *inputs())


def test_code_that_changes_during_an_abandoned_capture_poisons_nothing(strict: Strict) -> None:
    network, module = slow(strict(), seconds=0.6)
    interrupted(network, *inputs(), after=0.1)
    module.scale = 5.0
    network.resources.worker.wait()
    assert len(network.resources.store.entries()) == 0, "a graph of uncertain code is on the disk"
    assert len(network.resources.programs) == 0
    assert_right(network, module, *inputs())
    module.scale = 2.0
    assert_right(network, module, *inputs())


def test_weights_that_never_rest_are_said_so(strict: Strict) -> None:
    network, module = slow(strict(fallback="pytorch"), seconds=0.3)
    stop = threading.Event()

    def stir() -> None:
        with torch.no_grad():
            while not stop.wait(0.02):
                module.offset.add_(0)

    thread = threading.Thread(target=stir)
    thread.start()
    try:
        assert torch.equal(network(*inputs()), module(*inputs()))
    finally:
        stop.set()
        thread.join()
    assert list(network.statistics.fallbacks) == ["its weights or its code keep changing while it is being compiled"]
    assert_right(network, module, *inputs())


def test_what_is_cleared_while_it_is_made_does_not_come_back(strict: Strict) -> None:
    network, _ = slow(strict(), seconds=0.5)
    interrupted(network, *inputs(), after=0.1)
    network.resources.clear()
    network.resources.worker.wait()
    assert len(network.resources.compiled) == 0
    assert len(network.resources.programs) == 0


def test_progress_begins_each_stage_and_ends_with_ready(strict: Strict) -> None:
    told: list[tuple[str, str, str]] = []
    network, module = slow(strict(), seconds=0.3)
    network.resources.progress = lambda name, stage, signature: told.append((name, stage, str(signature)))
    network(*inputs())
    network(*inputs())
    assert [stage for _, stage, _ in told] == ["capture", "convert", "compile", "ready"]
    told.clear()
    with torch.no_grad():
        module.offset.add_(1)
    interrupted(network, *inputs(4, 4), after=0.1)
    network.resources.worker.wait()
    assert [stage for _, stage, _ in told] == ["capture", "convert", "compile", "ready"]
    assert {name for name, _, _ in told} == {"net"}
    assert all("x:float32[1,4,4,4]" in signature for _, _, signature in told)


def test_preparing_makes_everything_ready_and_answers_nothing(strict: Strict) -> None:
    network, module = slow(strict(), seconds=0.2)
    assert network.prepare(*inputs())
    assert not network.prepare(*inputs())
    assert network.statistics.calls == 0
    assert_right(network, module, *inputs())
    assert network.statistics.compiles == 1
    with pytest.raises(Interrupted):
        network.prepare(*inputs(12, 12), interrupted=lambda: True)
    network.resources.worker.wait()
    assert network.stats()["held"] == 2


def test_a_job_raises_its_own_error_to_everybody_who_waits() -> None:
    jobs = Worker()
    begun = threading.Event()

    def fail() -> None:
        begun.set()
        wait(0.2)
        raise TimeoutError("of the job itself")

    raised = []

    def call() -> None:
        try:
            jobs.run("key", fail)
        except TimeoutError as error:
            raised.append(str(error))

    threads = [threading.Thread(target=call) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert raised == ["of the job itself"] * 3
    assert jobs.run("key", lambda: 5) == 5


def test_interrupted_from_the_keyboard_too(strict: Strict) -> None:
    """Whatever the polled function raises ends the wait as well."""
    network, module = slow(strict(), seconds=0.5)

    def press() -> bool:
        raise KeyboardInterrupt

    network.resources.interrupted = press
    with pytest.raises(KeyboardInterrupt):
        network(*inputs())
    network.resources.interrupted = None
    assert_right(network, module, *inputs())
    assert network.statistics.captures == 1
