"""A program is known by its text: a trace that leads to a known one converts and compiles nothing, in whatever process."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

from ov_backend import Settings
from ov_backend.core.errors import DeviceError
from ov_backend.engine.compile_job import CompileJob
from ov_backend.engine.engine import Engine
from ov_backend.engine.network import Network
from ov_backend.model.runtime.program import Program
from ov_backend.store.store import run_store
from tests.helpers.small import Small, assert_right, counts, inputs

Strict = Callable[..., Settings]


def network_of(settings: Settings, module: torch.nn.Module) -> Network:
    """A network of an engine of its own, as another process has it."""
    return Engine(settings).network("unet", module)


def fill(settings: Settings) -> None:
    """Let one engine leave in the store what a call needs."""
    network_of(settings, Small())(*inputs())


def refuse(*_: Any) -> Any:
    raise AssertionError("it is compiled after the trace")


def test_what_is_compiled_beside_the_trace_answers(strict: Strict, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(strict(low_memory="off"))
    monkeypatch.setattr(CompileJob, "_compile", refuse)
    module = Small(seed=3)
    network = network_of(strict(low_memory="off"), module)
    assert_right(network, module, *inputs())
    assert counts(network) == (1, 1)
    assert network.statistics.graph_hits == 1


def test_a_trace_that_leads_elsewhere_drops_it(strict: Strict) -> None:
    fill(strict(low_memory="off"))
    module = Small()
    module.last.register_forward_hook(lambda m, args, output: output * 3)
    network = network_of(strict(low_memory="off"), module)
    assert_right(network, module, *inputs())
    assert counts(network) == (1, 1)
    assert len(network.resources.compiled) == 1


def test_what_fails_beside_the_trace_is_compiled_after_it(strict: Strict, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(strict(low_memory="off"))
    calls, original = [], Program.compile

    def compile_once_in_vain(self: Program, *args: Any) -> Any:
        calls.append(args)
        if len(calls) == 1:
            raise DeviceError("the device is busy")
        return original(self, *args)

    monkeypatch.setattr(Program, "compile", compile_once_in_vain)
    module = Small()
    network = network_of(strict(low_memory="off"), module)
    assert_right(network, module, *inputs())
    assert len(calls) == 2
    assert not network.statistics.fallbacks


def test_weights_written_beside_the_compile_are_those_that_answer(strict: Strict, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(strict(low_memory="off"))
    module, original = Small(), Program.compile

    def compile_and_write(self: Program, *args: Any) -> Any:
        compiled = original(self, *args)
        with torch.no_grad():
            module.matrix.weight.add_(1)
        monkeypatch.setattr(Program, "compile", original)
        return compiled

    monkeypatch.setattr(Program, "compile", compile_and_write)
    network = network_of(strict(low_memory="off"), module)
    got = network(*inputs())
    torch.testing.assert_close(got, module(*inputs()), rtol=1e-3, atol=1e-4)


WRONG = [b"", b"[]", b"[" * 100_000, b'{"texts": 7}', b'{"texts": [7, "../up", "x"]}', b'{"texts": ["' + b"0" * 32 + b'"]}']


@pytest.mark.parametrize("content", WRONG)
def test_a_wrong_index_costs_nothing(content: bytes, strict: Strict) -> None:
    settings = strict(low_memory="off")
    fill(settings)
    entries = [entry.key for entry in run_store(settings.cache_folder).entries()]
    assert entries
    for key in entries:
        run_store(settings.cache_folder).put(key, {"texts.json": content})
    module = Small()
    network = network_of(settings, module)
    assert_right(network, module, *inputs())
    assert counts(network) == (1, 1)


def test_an_equal_text_of_other_code_compiles_nothing(strict: Strict) -> None:
    module = Small()
    network = network_of(strict(), module)
    assert_right(network, module, *inputs())
    handle = module.last.register_forward_hook(lambda m, args, output: None)
    assert_right(network, module, *inputs())
    assert counts(network) == (2, 1)
    handle.remove()
    assert_right(network, module, *inputs())
    assert counts(network) == (2, 1)


def test_what_was_traced_ahead_is_not_traced_by_the_call(strict: Strict) -> None:
    settings = strict(low_memory="off")
    fill(settings)
    module = Small()
    network = network_of(settings, module)
    first = network_of(settings, Small())
    first(*inputs())
    (signature,) = first.seen
    assert network.prepare_ahead(signature)
    assert network.resources.ahead.wait(60)
    network.trace_ahead(signature)
    assert counts(network) == (1, 1)
    assert_right(network, module, *inputs())
    assert counts(network) == (1, 1)


def test_what_cannot_be_traced_ahead_is_left_to_the_call(strict: Strict) -> None:
    module = Small()
    network = network_of(strict(), module)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        network(*inputs())
    (signature,) = network.seen
    other = network_of(strict(), module)
    other.trace_ahead(signature)  # outside of autocast
    assert counts(other) == (0, 0)
    assert_right(other, module, *inputs())


def test_a_stored_graph_that_was_a_wrong_guess_stays(strict: Strict, caplog: pytest.LogCaptureFixture) -> None:
    settings = strict(low_memory="off")
    fill(settings)
    module = Small()
    module.convolution = torch.nn.Conv2d(4, 8, 5, padding=2)  # the same kind of call, with other weights
    assert_right(network_of(settings, module), module, *inputs())
    module = Small()
    network = network_of(settings, module)
    assert_right(network, module, *inputs())
    assert network.statistics.graph_hits == 1
    assert not caplog.records


def test_where_no_thread_can_begin_the_compile_comes_after_the_trace(strict: Strict, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(strict(low_memory="off"))
    start = threading.Thread.start

    def refused(thread: threading.Thread) -> None:
        if thread.name == "ov_backend guess":
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refused)
    module = Small()
    network = network_of(strict(low_memory="off"), module)
    assert_right(network, module, *inputs())
    assert counts(network) == (1, 1)
    assert not network.statistics.fallbacks
