"""What a forward asks the interpreter, which may answer otherwise at the next call, or answers otherwise in a trace."""

from __future__ import annotations

import asyncio
import gc
import linecache
import signal
import socket
import sys
import tracemalloc
from collections.abc import Callable

import pytest
import torch

from ov_backend import Settings
from tests.helpers.readers import X
from tests.helpers.small import engine_for
from tests.trace.capture.test_results import Answering

Strict = Callable[..., Settings]


def annotated(first: int = 1) -> None:
    """Has annotations, a line and a file."""


ASKED = {
    "collector": lambda: gc.isenabled(),
    "annotations": lambda: len(annotated.__annotations__),
    "line": lambda: annotated.__code__.co_firstlineno,
    "line of a file": lambda: len(linecache.getline(__file__, 1)),
    "signal": lambda: signal.getsignal(signal.SIGINT) is signal.SIG_DFL,
    "by a text": lambda: getattr(sys, "get_int_max_str_digits", int)(),
    "memory": lambda: tracemalloc.is_tracing(),
    "time limit": lambda: socket.getdefaulttimeout() is None,
}


@pytest.mark.parametrize("name", ASKED)
def test_what_code_asks_the_interpreter_stays_in_pytorch(strict: Strict, name: str) -> None:
    ASKED[name]()  # a line that Python has read already asks the file no more: then only the name of the question tells
    module = Answering(lambda m, y: y * (2.0 + float(ASKED[name]())))
    network = engine_for(strict(fallback="pytorch"), module)
    torch.testing.assert_close(network(X), module(X))
    assert network.statistics.calls == 0
    assert network.statistics.last_reason.startswith(("its forward asks the interpreter", "its forward calls"))


def test_a_loop_that_runs_is_found(strict: Strict) -> None:
    def factor() -> float:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return 1.0
        return 2.0

    async def ask() -> None:
        torch.testing.assert_close(network(X), module(X))

    module = Answering(lambda m, y: y * factor())
    network = engine_for(strict(fallback="pytorch"), module)
    asyncio.run(ask())
