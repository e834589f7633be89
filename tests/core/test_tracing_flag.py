"""While a thread traces, another one calls what Dynamo has compiled."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator

import pytest
import torch
from torch.fx import _symbolic_trace
from torch.fx.experimental.proxy_tensor import PythonKeyTracer, make_fx

from ov_backend.core.tracing_flag import flag_of_this_thread


@pytest.fixture(autouse=True)
def _reset() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def in_thread(function: Callable[[], object]) -> object:
    """What a function returns, or raises, in a thread of its own."""
    results: list[object] = []

    def run() -> None:
        try:
            results.append(function())
        except Exception as error:
            results.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return results[0]


def test_other_threads_call_compiled_functions_while_one_traces() -> None:
    compiled = torch.compile(lambda x: x + 1, backend="eager")
    x = torch.ones(2)
    compiled(x)
    in_thread(lambda: compiled(x))  # Dynamo guards the number of threads, which a new thread may have of its own
    answers: list[object] = []

    def traced(y: torch.Tensor) -> torch.Tensor:
        assert _symbolic_trace.is_fx_tracing()
        answers.append(in_thread(lambda: compiled(x)))
        return compiled(y * 2)

    with flag_of_this_thread():
        gm = make_fx(traced)(torch.ones(3))
    assert torch.equal(answers[0], x + 1)  # type: ignore[arg-type]
    assert torch.equal(gm(torch.ones(3)), torch.full((3,), 3.0))  # a compiled function within is traced as if it was not


def test_a_trace_patches_no_function_of_torch_and_no_name_of_python() -> None:
    before = torch.nn.Module.__call__, torch.nn.Module.__getattr__, math.sqrt
    seen: list[tuple[object, ...]] = []

    def traced(y: torch.Tensor) -> torch.Tensor:
        seen.append((torch.nn.Module.__call__, torch.nn.Module.__getattr__, math.sqrt))
        return torch.nn.Linear(3, 3)(y) * math.sqrt(2.0)

    with flag_of_this_thread():
        make_fx(traced)(torch.ones(3))
    assert seen == [before]


def test_blocks_of_several_threads_take_turns_and_leave_torch_as_it_was() -> None:
    before = _symbolic_trace._is_fx_tracing_flag, "trace" in vars(PythonKeyTracer)
    inside: list[int] = []
    overlaps: list[int] = []

    def trace() -> None:
        for _ in range(20):
            with flag_of_this_thread():
                inside.append(1)
                make_fx(lambda z: z + 1)(torch.ones(1))
                overlaps.append(len(inside) - 1)
                inside.pop()
            assert not _symbolic_trace.is_fx_tracing()

    threads = [threading.Thread(target=trace) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert overlaps == [0] * 80
    assert (_symbolic_trace._is_fx_tracing_flag, "trace" in vars(PythonKeyTracer)) == before == (False, False)
