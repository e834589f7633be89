"""While a thread traces, another one calls what Dynamo has compiled."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest
import torch
from torch.fx import _symbolic_trace
from torch.fx.experimental.proxy_tensor import PythonKeyTracer, make_fx

from ov_backend.tracing_flag import flag_of_this_thread


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
    answers: list[object] = []

    def traced(y: torch.Tensor) -> torch.Tensor:
        assert _symbolic_trace.is_fx_tracing()
        answers.append(in_thread(lambda: compiled(x)))
        with pytest.raises(RuntimeError, match="symbolically trace"):
            compiled(x)
        return y * 2

    with flag_of_this_thread():
        gm = make_fx(traced)(torch.ones(3))
    assert torch.equal(answers[0], x + 1)  # type: ignore[arg-type]
    assert torch.equal(gm(torch.ones(3)), torch.full((3,), 2.0))


def test_blocks_may_overlap_and_leave_torch_as_it_was() -> None:
    before = _symbolic_trace._is_fx_tracing_flag, "trace" in vars(PythonKeyTracer)

    def inside(y: torch.Tensor) -> torch.Tensor:
        def other() -> bool:
            with flag_of_this_thread():
                make_fx(lambda z: z + 1)(torch.ones(1))
                return bool(_symbolic_trace.is_fx_tracing())

        assert in_thread(other) is False
        assert _symbolic_trace.is_fx_tracing()
        return y + 1

    with flag_of_this_thread():
        make_fx(inside)(torch.ones(3))
        assert not _symbolic_trace.is_fx_tracing()
    assert (_symbolic_trace._is_fx_tracing_flag, "trace" in vars(PythonKeyTracer)) == before
    assert before == (False, False)
