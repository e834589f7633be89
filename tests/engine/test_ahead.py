"""What is compiled ahead in the background: used after the same check as everything else, and never in a call's way."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

import pytest
import torch

from ov_backend import Settings
from ov_backend.engine import compile_memory
from ov_backend.engine.ahead.ahead import AheadWorker
from ov_backend.engine.compile_job import CompileJob
from ov_backend.engine.engine import Engine
from ov_backend.engine.network import Network
from ov_backend.engine.worker import Worker
from ov_backend.guards.signature import Signature
from ov_backend.memory import pressure
from ov_backend.model.runtime.program import CompiledProgram, Program
from tests.helpers.small import Small, assert_right, counts, inputs

Strict = Callable[..., Settings]


def seen_before(settings: Settings, module: torch.nn.Module | None = None) -> tuple[Network, Small, Signature]:
    """A new engine's network, its module, and the signature of a call whose graph another engine has stored."""
    first = Engine(settings).network("net", Small())
    first(*inputs())
    signature = next(iter(first.seen))
    module = Small() if module is None else module
    return Engine(settings).network("net", module), module, signature


@contextlib.contextmanager
def held(monkeypatch: pytest.MonkeyPatch, network: Network, signature: Signature) -> Iterator[None]:
    """Prepare ahead; the compile waits until the block ends, and is done afterwards."""
    begun, ended = threading.Event(), threading.Event()
    compile_program = CompileJob.compile

    def hold(job: CompileJob, program: Program) -> CompiledProgram:
        compiled = compile_program(job, program)
        begun.set()
        ended.wait(60)
        return compiled

    with monkeypatch.context() as patch:
        patch.setattr(CompileJob, "compile", hold)
        assert network.prepare_ahead(signature)
        assert begun.wait(60)
    try:
        yield
    finally:
        ended.set()
        assert network.resources.ahead.wait(60)


def test_a_call_of_a_prepared_network_compiles_nothing(strict: Strict) -> None:
    network, module, signature = seen_before(strict(low_memory="off"))
    assert network.prepare_ahead(signature)
    assert network.resources.ahead.wait(60)
    assert counts(network) == (0, 1)
    assert_right(network, module, *inputs())
    assert counts(network) == (1, 1)
    assert not network.prepare_ahead(signature), "there is nothing left to prepare"


def test_what_was_never_called_is_left_to_the_call(strict: Strict) -> None:
    network, module, signature = seen_before(strict(low_memory="off"))
    other = Engine(strict(cache_dir=str(strict(low_memory="off").cache_folder / "empty"))).network("net", module)
    assert not other.prepare_ahead(signature)
    assert_right(network, module, *inputs(9, 9))
    assert counts(network) == (1, 1)


def test_a_call_joins_the_compile_that_runs(strict: Strict, monkeypatch: pytest.MonkeyPatch) -> None:
    network, module, signature = seen_before(strict(low_memory="off"))
    answers: list[torch.Tensor] = []

    @torch.no_grad()
    def call() -> None:
        answers.append(network(*inputs()))

    thread = threading.Thread(target=call)
    with held(monkeypatch, network, signature):
        thread.start()
        while not len(network.resources.worker):
            thread.join(0.01)
    thread.join()
    torch.testing.assert_close(answers[0], module(*inputs()), rtol=1e-3, atol=1e-4)
    assert counts(network) == (1, 1)


def test_another_network_does_not_wait_for_it(strict: Strict, monkeypatch: pytest.MonkeyPatch) -> None:
    network, module, signature = seen_before(strict(low_memory="off"))
    with held(monkeypatch, network, signature):
        assert_right(network, module, *inputs(9, 9))
    assert counts(network) == (1, 2)


@pytest.mark.parametrize("back", [False, True])
def test_weights_written_while_it_is_compiled_leave_nothing_behind(
    back: bool, strict: Strict, monkeypatch: pytest.MonkeyPatch
) -> None:
    network, module, signature = seen_before(strict(low_memory="off"))
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    with held(monkeypatch, network, signature):
        with torch.no_grad():
            module.matrix.weight.add_(1)
        if back:
            module.load_state_dict(before)
            network.begin_run()
    assert network.stats()["held"] == 0
    assert_right(network, module, *inputs())


def test_a_write_that_nothing_counts_is_found_before_it_is_used(strict: Strict) -> None:
    network, module, signature = seen_before(strict(low_memory="off"))
    assert network.prepare_ahead(signature)
    assert network.resources.ahead.wait(60)
    module.matrix.weight.data.view(-1)[5] += 50  # beside the elements that are compared at every check
    assert_right(network, module, *inputs())
    assert counts(network) == (1, 2)


def test_weights_that_were_others_meanwhile_are_compiled_again(strict: Strict) -> None:
    network, module, signature = seen_before(strict(low_memory="off"))
    assert network.prepare_ahead(signature)
    assert network.resources.ahead.wait(60)
    module.load_state_dict(Small(seed=3).state_dict())
    network.prepare_ahead(signature)
    module.load_state_dict(Small().state_dict())
    assert network.resources.ahead.wait(60)
    assert_right(network, module, *inputs())


def test_a_checkpoint_loaded_meanwhile_is_the_one_that_answers(strict: Strict, monkeypatch: pytest.MonkeyPatch) -> None:
    network, module, signature = seen_before(strict(low_memory="off"))
    with held(monkeypatch, network, signature):
        for parameter in module.parameters():
            parameter.data = torch.zeros_like(parameter)
    assert_right(network, module, *inputs())


def test_clearing_drops_what_is_being_prepared(strict: Strict, monkeypatch: pytest.MonkeyPatch) -> None:
    network, module, signature = seen_before(strict(low_memory="off"))
    with held(monkeypatch, network, signature):
        network.resources.clear()
    assert len(network.resources.compiled) == 0
    assert_right(network, module, *inputs())


def test_nothing_is_evicted_for_it(strict: Strict) -> None:
    network, _, signature = seen_before(strict(low_memory="off"))
    network(*inputs(9, 9))
    network.resources.compiled.budget = network.resources.compiled.bytes + 1
    network.prepare_ahead(signature)
    assert network.resources.ahead.wait(60)
    assert network.stats()["held"] == 1
    assert network.stats()["signatures"] != [str(signature)]


def test_a_machine_without_memory_prepares_nothing(strict: Strict, monkeypatch: pytest.MonkeyPatch) -> None:
    network, module, signature = seen_before(strict(low_memory="off"))
    monkeypatch.setattr(compile_memory.memory, "available_memory", lambda: 1000)
    network.prepare_ahead(signature)
    assert network.resources.ahead.wait(60)
    assert network.stats()["held"] == 0
    assert_right(network, module, *inputs())


def test_where_few_memory_mappings_are_free_nothing_is_prepared(strict: Strict, monkeypatch: pytest.MonkeyPatch) -> None:
    network, _, signature = seen_before(strict(low_memory="off"))
    monkeypatch.setattr(pressure, "free_mappings", lambda: 9_000)
    network.prepare_ahead(signature)
    assert network.resources.ahead.wait(60)
    assert network.stats()["held"] == 0


def test_where_weights_are_given_back_nothing_is_prepared(strict: Strict) -> None:
    network, module, signature = seen_before(strict(low_memory="on"))
    network.prepare_ahead(signature)
    assert network.resources.ahead.wait(60)
    assert network.stats()["held"] == 0
    assert_right(network, module, *inputs())


def test_a_failure_in_the_background_is_nobodys_error(strict: Strict, monkeypatch: pytest.MonkeyPatch) -> None:
    network, module, signature = seen_before(strict(low_memory="off"))

    def fail(*_: object) -> CompiledProgram:
        raise RuntimeError("planted")

    with monkeypatch.context() as patch:
        patch.setattr(CompileJob, "compile", fail)
        assert network.prepare_ahead(signature)
        assert network.resources.ahead.wait(60)
    assert not network.context.refusals
    assert_right(network, module, *inputs())


def test_a_damaged_graph_is_captured_by_the_call(strict: Strict) -> None:
    network, module, signature = seen_before(strict(low_memory="off"))
    with network._lookup.lock:
        assert network._lookup.find_known(signature) is not None
    for entry in network.resources.store.entries():
        entry.path.write_bytes(b"damaged")
    network.prepare_ahead(signature)
    assert network.resources.ahead.wait(60)
    assert_right(network, module, *inputs())
    assert counts(network) == (1, 1)


def test_jobs_begin_while_the_front_has_none_and_those_that_a_call_claims_are_dropped() -> None:
    front, order, held_back = Worker(), list[str](), threading.Event()
    ahead = AheadWorker(front)
    call = threading.Thread(target=lambda: front.run("call", lambda: (held_back.wait(60), order.append("call"))))
    call.start()
    while not len(front):
        call.join(0.01)
    for name in ("a", "b", "c"):
        ahead.submit(name, lambda name=name: order.append(name))
    assert ahead.claim("b") is None
    held_back.set()
    assert ahead.wait(60)
    call.join()
    assert order == ["call", "a", "c"]


def test_what_waits_can_be_dropped() -> None:
    front, order, held_back = Worker(), list[str](), threading.Event()
    ahead = AheadWorker(front)
    ahead.submit("a", lambda: (held_back.wait(60), order.append("a")))
    while not ahead.running:
        ahead.wait(0.01)
    ahead.submit("b", lambda: order.append("b"))
    ahead.cancel()
    held_back.set()
    assert ahead.wait(60)
    assert order == ["a"]
