"""Waiting for a network can be stopped within a second; what was begun goes on, and later calls use it."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

import pytest
import torch

from ov_backend import Settings
from ov_backend.core.errors import Interrupted
from ov_backend.engine.compile_job import CompileJob
from ov_backend.engine.engine import Engine
from ov_backend.engine.network import Network
from ov_backend.engine.request import CompileRequest
from ov_backend.engine.worker import Worker
from ov_backend.guards.signature import Signature
from tests.helpers.small import Slow, Small, assert_right, inputs, wait

Strict = Callable[..., Settings]


def stages(network: Network, begin: Callable[[str], None]) -> None:
    """Call ``begin(stage)`` in the worker's thread whenever a stage begins, beside what is called already."""
    previous = network.resources.progress

    def progress(name: str, stage: str, signature: Signature) -> None:
        if previous is not None:
            previous(name, stage, signature)
        begin(stage)

    network.resources.progress = progress


def interrupted(network: Network, *args: torch.Tensor, after: float = 0.1) -> None:
    """Call, and interrupt some seconds after the capture has begun."""
    begun: list[float] = []
    stages(network, lambda stage: begun.append(time.monotonic()) if stage == "capture" else None)
    network.resources.interrupted = lambda: bool(begun) and time.monotonic() > begun[0] + after
    with pytest.raises(Interrupted):
        network(*args)
    network.resources.interrupted = network.resources.progress = None


@contextlib.contextmanager
def abandoned(network: Network, *args: torch.Tensor, stage: str = "capture") -> Iterator[None]:
    """Call, and interrupt when a stage begins; the job waits there until the block ends, and is done afterwards."""
    begun, ended = threading.Event(), threading.Event()

    def hold(current: str) -> None:
        if current == stage:
            begun.set()
            ended.wait(60)

    previous = network.resources.progress
    stages(network, hold)
    network.resources.interrupted = begun.is_set
    try:
        with pytest.raises(Interrupted):
            network(*args)
        yield
    finally:
        network.resources.interrupted, network.resources.progress = None, previous
        ended.set()
        network.resources.worker.wait()


def slow(settings: Settings, seconds: float) -> tuple[Network, Slow]:
    module = Slow(seconds=seconds)
    return Engine(settings).network("net", module), module


def small(settings: Settings) -> tuple[Network, Small]:
    module = Small()
    return Engine(settings).network("net", module), module


def test_an_interrupt_returns_before_the_work_ends(strict: Strict) -> None:
    network, module = slow(strict(), seconds=1.2)
    interrupted(network, *inputs())
    assert len(network.resources.worker) == 1, "the work was not abandoned but ended"
    assert_right(network, module, *inputs())
    assert (network.statistics.captures, network.statistics.compiles) == (1, 1)


@pytest.mark.parametrize("fallback", ["raise", "pytorch"])
def test_an_interrupt_is_no_fallback(strict: Strict, fallback: str) -> None:
    network, _ = small(strict(fallback=fallback))
    with abandoned(network, *inputs()):
        pass
    assert not network.statistics.fallbacks
    assert network.statistics.calls == 0
    assert not network.context.refusals


def test_an_abandoned_compile_lands_in_both_caches(strict: Strict) -> None:
    network, module = small(strict())
    with abandoned(network, *inputs()):
        pass
    assert network.stats()["held"] == 1
    assert_right(network, module, *inputs())
    assert (network.statistics.captures, network.statistics.compiles) == (1, 1)
    assert network.resources.store is not None
    assert len(network.resources.store.entries()) == 1


def test_calls_of_many_threads_join_one_job(strict: Strict) -> None:
    network, module = slow(strict(), seconds=0.3)
    expected, results = module(*inputs()), []

    @torch.no_grad()  # it is of one thread
    def call() -> None:
        results.append(network(*inputs()))

    run_in_threads(call, 4)
    assert len(results) == 4
    for result in results:
        torch.testing.assert_close(result, expected, rtol=1e-3, atol=1e-4)
    assert (network.statistics.captures, network.statistics.compiles) == (1, 1)


def run_in_threads(function: Callable[[], None], count: int) -> None:
    threads = [threading.Thread(target=function) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_what_was_compiled_between_a_lookup_and_its_request_is_not_compiled_again(strict: Strict) -> None:
    network, module = small(strict())
    request = network._lookup.find(network._binder(inputs(), {}))
    assert isinstance(request, CompileRequest)
    assert_right(network, module, *inputs())
    entry = CompileJob(network.resources, request, network._preparing.context).run()
    assert entry is network._lookup.compiled(request)
    assert network.statistics.compiles == 1


def test_another_call_meanwhile_is_right(strict: Strict) -> None:
    network, module = slow(strict(), seconds=0.3)
    interrupted(network, *inputs(8, 8))
    assert_right(network, module, *inputs(12, 12))
    assert_right(network, module, *inputs(8, 8))
    assert network.statistics.captures == 2


def test_the_module_may_be_used_and_changed_during_an_abandoned_capture(strict: Strict) -> None:
    network, module = slow(strict(), seconds=0.4)
    expected = module(*inputs())
    interrupted(network, *inputs())
    while network.resources.worker:
        assert torch.equal(module(*inputs()), expected), "PyTorch meets the trace's tensors"
        assert all(type(p) is torch.nn.Parameter for p in module.parameters())
    interrupted(network, *inputs(9, 9))
    module.load_state_dict(Small(seed=3).state_dict())  # a checkpoint is loaded in place
    reference = Small(seed=3)
    torch.testing.assert_close(module(*inputs()), reference(*inputs()))
    network.resources.worker.wait()
    assert_right(network, reference, *inputs(9, 9))
    assert_right(network, reference, *inputs(8, 8))


@pytest.mark.parametrize("stage", ["capture", "compile"])
def test_weights_that_change_during_an_abandoned_compile_poison_nothing(strict: Strict, stage: str) -> None:
    network, module = small(strict())
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    with abandoned(network, *inputs(), stage=stage), torch.no_grad():
        module.matrix.weight.add_(1)
    assert network.stats()["held"] == (stage == "capture"), "compiled from weights of two states"
    assert_right(network, module, *inputs())
    module.load_state_dict(before)
    assert_right(network, module, *inputs())


def test_code_that_changes_during_an_abandoned_capture_poisons_nothing(strict: Strict) -> None:
    network, module = slow(strict(), seconds=0.4)
    interrupted(network, *inputs())
    module.scale = 5.0
    network.resources.worker.wait()
    assert len(network.resources.store.entries()) == 0, "a graph of uncertain code is on the disk"
    assert len(network.resources.programs) == 0
    assert_right(network, module, *inputs())
    module.scale = 2.0
    assert_right(network, module, *inputs())


def test_weights_that_never_rest_are_said_so(strict: Strict) -> None:
    network, module = slow(strict(fallback="pytorch"), seconds=0.1)

    def stir(stage: str) -> None:
        if stage == "compile":
            with torch.no_grad():
                module.offset.add_(0)

    stages(network, stir)
    assert torch.equal(network(*inputs()), module(*inputs()))
    assert list(network.statistics.fallbacks) == ["its weights or its code keep changing while it is being compiled"]
    network.resources.progress = None
    assert_right(network, module, *inputs())


def test_what_is_cleared_while_it_is_compiled_does_not_come_back(strict: Strict) -> None:
    network, _ = small(strict())
    with abandoned(network, *inputs()):
        network.resources.clear()
    assert len(network.resources.compiled) == 0
    assert len(network.resources.programs) == 0


def test_progress_begins_each_stage_and_ends_with_ready(strict: Strict) -> None:
    reports: list[tuple[str, str, str]] = []
    network, module = small(strict())
    network.resources.progress = lambda name, stage, signature: reports.append((name, stage, str(signature)))
    network(*inputs())
    network(*inputs())
    assert [stage for _, stage, _ in reports] == ["read", "ready", "capture", "convert", "compile", "ready"]
    reports.clear()
    with torch.no_grad():
        module.offset.add_(1)
    with abandoned(network, *inputs(4, 4)):
        pass
    assert [stage for _, stage, _ in reports] == ["capture", "convert", "compile", "ready"]
    assert {name for name, _, _ in reports} == {"net"}
    assert all("x:float32[1,4,4,4]" in signature for _, _, signature in reports)


def test_preparing_compiles_everything_and_answers_nothing(strict: Strict) -> None:
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
    worker = Worker()

    def fail() -> None:
        wait(0.2)
        raise TimeoutError("of the job itself")

    raised = []

    def call() -> None:
        try:
            worker.run("key", fail)
        except TimeoutError as error:
            raised.append(str(error))

    run_in_threads(call, 3)
    assert raised == ["of the job itself"] * 3
    assert worker.run("key", lambda: 5) == 5


def test_interrupted_from_the_keyboard_too(strict: Strict) -> None:
    """Whatever the polled function raises ends the wait as well."""
    network, module = slow(strict(), seconds=0.3)

    def press() -> bool:
        raise KeyboardInterrupt

    network.resources.interrupted = press
    with pytest.raises(KeyboardInterrupt):
        network(*inputs())
    network.resources.interrupted = None
    assert_right(network, module, *inputs())
    assert network.statistics.captures == 1
