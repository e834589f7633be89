"""Several threads call what is compiled, by both entries and beside other backends; each result is eager PyTorch's."""

from __future__ import annotations

import copy
import faulthandler
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo.backends.registry import lookup_backend
from torch.fx import _symbolic_trace

import ov_backend
from ov_backend import Settings
from ov_backend.core import tracing_lock
from ov_backend.core.tracing_flag import flag_of_this_thread
from ov_backend.torch_compile.backend import openvino_fx
from ov_backend.torch_compile.graph import DynamoGraph
from tests.helpers.extent import only_in_full

#: Seconds after which a round that has not ended is taken for a deadlock.
_DEADLOCK_S = 240
_OPTIONS = {"precision": "f32", "model_caching": False}


@pytest.fixture(autouse=True)
def dynamos_settings() -> Iterator[None]:
    """PyTorch before 2.4 sets these for the time of a call, and two threads that do may leave each other's."""
    names = ("automatic_dynamic_shapes", "assume_static_by_default")
    with torch._dynamo.config.patch({name: getattr(torch._dynamo.config, name) for name in names}):
        yield


def net(width: int = 16) -> nn.Module:
    """[n, 8] -> [n, 8]"""
    return nn.Sequential(nn.Linear(8, width), nn.GELU(), nn.LayerNorm(width), nn.Linear(width, 8)).eval()


def assert_same(actual: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(actual.detach(), expected.detach(), rtol=0, atol=1e-4)


def run_together(jobs: list[Callable[[], None]]) -> None:
    """Run jobs at the same time, each in a thread; what one raises is an error, and so is a deadlock."""
    barrier, errors = threading.Barrier(len(jobs)), list[str]()

    def run(job: Callable[[], None]) -> None:
        barrier.wait()
        try:
            job()
        except BaseException:
            errors.append(traceback.format_exc())

    threads = [threading.Thread(target=run, args=(job,), daemon=True) for job in jobs]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + _DEADLOCK_S
    for thread in threads:
        thread.join(max(0.1, deadline - time.monotonic()))
    if any(thread.is_alive() for thread in threads):
        faulthandler.dump_traceback(sys.stderr, all_threads=True)
        pytest.fail("a deadlock; all stacks are above")
    assert not errors, errors[0]


def _beside_others(name: str) -> Any:
    """A backend of PyTorch's whose trace raises in no other thread.

    Where PyTorch cannot tell a symbolic trace from its own, it refuses the calls of what any backend has compiled while another
    thread's AOTAutograd traces, with this package or without.
    """
    if name == "eager" or hasattr(_symbolic_trace, "is_fx_symbolic_tracing"):
        return name

    def backend(gm: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Any:
        with flag_of_this_thread():
            return lookup_backend(name)(gm, inputs)

    return backend


class Round:
    """One round: eight threads, whose first calls are at the same time."""

    def __init__(self, sizes: int, third: str) -> None:
        self._sizes, self._third = sizes, third
        self._shared, self._accelerated = net(), net()
        self._compiled = torch.compile(self._shared, backend="openvino_fx", options=_OPTIONS)
        self._plain = {id(each): copy.deepcopy(each) for each in (self._shared, self._accelerated)}

    @contextmanager
    def accelerated(self) -> Iterator[None]:
        with ov_backend.accelerate({"net": self._accelerated}, Settings(**_OPTIONS)):
            yield

    def jobs(self) -> list[Callable[[], None]]:
        calls = self._calls_of_shared, self._calls_of_shared, self._calls_of_accelerated, self._calls_of_accelerated
        others = (lambda: self._other("eager")), (lambda: self._other(self._third))
        return [*calls, *others, self._training, self._resets]

    @torch.no_grad()
    def _calls_of_shared(self) -> None:
        plain = self._plain[id(self._shared)]
        for size in range(1, self._sizes + 1):
            x = torch.randn(size, 8)
            assert_same(self._compiled(x), plain(x))

    @torch.no_grad()
    def _calls_of_accelerated(self) -> None:
        plain = self._plain[id(self._accelerated)]
        for size in range(1, self._sizes + 1):
            x = torch.randn(size, 8)
            assert_same(self._accelerated(x), plain(x))

    @torch.no_grad()
    def _other(self, backend: str) -> None:
        for size in range(1, self._sizes + 1):
            module = net(8 + size)
            x = torch.randn(1 + size % 2, 8)
            assert_same(torch.compile(module, backend=_beside_others(backend), dynamic=False)(x), module(x))

    @torch.enable_grad()
    def _training(self) -> None:
        module = net().train()
        plain = copy.deepcopy(module)
        compiled = torch.compile(module, backend="openvino_fx", dynamic=False, options={**_OPTIONS, "aot_autograd": True})
        for size in range(2, 2 + self._sizes // 2):
            x = torch.randn(size, 8)
            compiled(x).square().sum().backward()
            plain(x).square().sum().backward()
            for (name, parameter), expected in zip(module.named_parameters(), plain.parameters()):
                torch.testing.assert_close(parameter.grad, expected.grad, rtol=1e-3, atol=1e-3, msg=name)

    def _resets(self) -> None:
        for _ in range(self._sizes):
            ov_backend.reset()
            time.sleep(0.02)


def stress(rounds: int, sizes: int, third: str) -> None:
    for _ in range(rounds):
        torch._dynamo.reset()
        each = Round(sizes, third)
        with each.accelerated():
            run_together(each.jobs())


def test_eight_threads_with_three_backends_and_both_entries_get_eager_results() -> None:
    stress(rounds=1, sizes=4, third="aot_eager")


@only_in_full
@pytest.mark.parametrize("third", ["aot_eager", "inductor"])
def test_eight_threads_get_eager_results_in_many_rounds(third: str) -> None:
    stress(rounds=100 if third == "aot_eager" else 10, sizes=6, third=third)


def test_a_trace_begins_when_dynamo_has_compiled() -> None:
    network = ov_backend.torch_compile.backend.Engine(Settings(**_OPTIONS)).network("net", net())
    took = list[float]()

    @torch.no_grad()
    def call() -> None:
        network(torch.ones(2, 8))
        took.append(time.monotonic())

    thread = threading.Thread(target=call)
    with tracing_lock.LOCK:
        thread.start()
        thread.join(1.0)
        assert not took, "it was traced while another thread held Dynamo's lock"
        released = time.monotonic()
    thread.join(_DEADLOCK_S)
    assert took[0] >= released


def test_a_backend_around_this_one_may_call_it_while_dynamo_compiles() -> None:
    waiting = ov_backend.torch_compile.backend.Engine(Settings(**_OPTIONS)).network("net", net())
    threads = [threading.Thread(target=torch.no_grad()(lambda: waiting(torch.ones(3, 8))), daemon=True)]

    def warms_up(gm: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Callable[..., object]:
        function = openvino_fx(gm, inputs, options={**_OPTIONS, "fallback": "raise"})
        threads[0].start()  # its trace has to wait for this very compile
        time.sleep(0.2)
        function(*(torch.ones(each.shape) for each in inputs))
        return function

    module = net()
    x = torch.randn(2, 8)
    run_together([torch.no_grad()(lambda: assert_same(torch.compile(module, backend=warms_up)(x), module(x)))])
    threads[0].join(_DEADLOCK_S)
    assert waiting.statistics.calls == 1


def test_a_trace_leaves_the_weights_of_a_graph_where_other_threads_find_them() -> None:
    child = nn.Linear(2, 2)
    gm = torch.fx.symbolic_trace(nn.Sequential(child, nn.ReLU(), child))
    graph, seen = DynamoGraph(gm), list[torch.Tensor]()

    def watched(*full: torch.Tensor) -> torch.Tensor:
        hook = child.register_forward_pre_hook(lambda *_: seen.extend(graph.full(())))
        try:
            return graph.traced(*full)
        finally:
            hook.remove()

    x = torch.ones(1, 2)
    others = [torch.zeros(2, 2), torch.ones(2)]
    assert torch.equal(watched(*others, x), torch.ones(1, 2)), "the module's second place has these weights too"
    assert seen
    assert all(any(each is weight for weight in child.parameters()) for each in seen)
