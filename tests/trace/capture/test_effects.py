"""What a forward does beside answering, or asks of the system, the interpreter or other threads, PyTorch does alone and once."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import ctypes
import datetime
import decimal
import functools
import gc
import importlib.resources
import inspect
import io
import linecache
import logging
import os
import pathlib
import pkgutil
import queue
import random
import signal
import socket
import sys
import threading
import time
import tracemalloc
import uuid
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import numpy as np
import pytest
import safetensors.numpy
import torch

from ov_backend import Settings
from ov_backend.guards import autocast
from tests.helpers.readers import X
from tests.helpers.small import engine_for
from tests.trace.capture.test_results import Answering

Strict = Callable[..., Settings]
HERE = pathlib.Path(__file__)
LOCK, OWNED, CONDITION = threading.Lock(), threading.RLock(), threading.Condition()


class Holder:
    value = 2.0

    def get(self) -> float:
        return self.value


HOLDER = Holder()


def _in_a_thread() -> float:
    found = list[float]()
    thread = threading.Thread(target=lambda: found.append(HOLDER.get()))
    thread.start()
    thread.join()
    return found[0]


def _in_a_pool() -> float:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(HOLDER.get).result()


def _of_a_queue() -> float:
    letters: queue.SimpleQueue[float] = queue.SimpleQueue()
    letters.put(1.0)
    return letters.get()


def _of_a_lock() -> float:
    if not LOCK.acquire(False):
        return 2.0
    LOCK.release()
    return 1.0


def _of_a_socket() -> float:
    one, other = socket.socketpair()
    with one, other:
        return float(one.send(b"xx"))


def _of_safetensors() -> float:
    with safetensors.safe_open(os.environ["TENSORS"], "np") as file:
        return float(file.get_tensor("a")[0])


def _into_a_file() -> float:
    safetensors.serialize_file({}, os.environ["TENSORS"], {"written": "by a forward"})
    return 1.0


def _interval() -> float:
    sys.setswitchinterval(sys.getswitchinterval())
    return 1.0


def _precision() -> float:
    torch.set_float32_matmul_precision(torch.get_float32_matmul_precision())
    return 1.0


def annotated(first: int = 1) -> None:
    """Has annotations, a line and a file."""


#: What is asked of the interpreter, with an answer that stays what it is between two calls.
INTERPRETER: dict[str, Callable[[], float]] = {
    "whether garbage is collected": lambda: gc.isenabled(),
    "annotations": lambda: len(annotated.__annotations__),
    "line": lambda: annotated.__code__.co_firstlineno,
    "line of a file": lambda: len(linecache.getline(__file__, 1)),
    "signal": lambda: signal.getsignal(signal.SIGINT) is signal.SIG_DFL,
    "by a text": lambda: getattr(sys, "get_int_max_str_digits", int)(),
    "memory": lambda: tracemalloc.is_tracing(),
    "time limit": lambda: socket.getdefaulttimeout() is None,
    "whether a log is written": lambda: logging.getLogger("a name").isEnabledFor(logging.DEBUG),
    "stack": lambda: inspect.currentframe() is None,
    "own thread": lambda: threading.current_thread() is threading.main_thread(),
    "seeded generator": lambda: random.Random(3).random(),
    "text of a file": lambda: len(HERE.read_bytes()),
}


ASKED: dict[str, Callable[[], float]] = {
    **INTERPRETER,
    "time": lambda: time.time(),
    "date": lambda: datetime.datetime.now().microsecond,
    "number of its own": lambda: uuid.uuid4().int % 7,
    "thread": _in_a_thread,
    "pool": _in_a_pool,
    "queue": _of_a_queue,
    "lock": _of_a_lock,
    "owner of a lock": lambda: float(OWNED._is_owned()),  # type: ignore[attr-defined]
    "owner of a condition": lambda: float(CONDITION._is_owned()),  # type: ignore[attr-defined]
    "bit generator": lambda: float(np.random.PCG64().random_raw() % 7),
    "socket": _of_a_socket,
    "fstat": lambda: float(os.fstat(0).st_size),
    "process": lambda: float(os.getpid() % 7),
    "sleep": lambda: float(time.sleep(0) is None),
    "clock": lambda: float(time.clock_gettime_ns(0) % 7) if hasattr(time, "clock_gettime_ns") else float(time.time_ns() % 7),
    "collector": lambda: float(gc.get_count()[0]),
    "library": lambda: float(ctypes.CDLL(None).abs(-3)),
    "package's data": lambda: float(len(pkgutil.get_data("tests.trace.capture", HERE.name) or b"")),
    "package's text": lambda: float(len(importlib.resources.read_text("tests.trace.capture", HERE.name))),
    "tensors": _of_safetensors,
    "file of tensors": _into_a_file,
    "interval of threads": _interval,
    "precision of products": _precision,
    "number of threads": lambda: float(torch.set_num_threads(torch.get_num_threads()) is None),
    "level of a log": lambda: float(logging.getLogger("of this test").setLevel(10) is None),
    "text of tensors": lambda: float(torch.set_printoptions(precision=4) is None),
    "threads of the thread": lambda: float(torch.get_num_threads()),
    "import by a name": lambda: float(len(importlib.import_module("tests.trace").__name__)),
    "exit": lambda: float(atexit.unregister(_in_a_thread) is None),
}


@pytest.mark.parametrize("name", ASKED)
def test_what_is_asked_of_the_system_or_another_thread_stays_in_pytorch(
    strict: Strict, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    safetensors.numpy.save_file({"a": np.ones(1, np.float32)}, tmp_path / "a.safetensors")
    monkeypatch.setenv("TENSORS", str(tmp_path / "a.safetensors"))
    ASKED[name]()  # a line that Python has read already asks the file no more: then only the name of the question tells
    module = Answering(lambda m, y: y * (2.0 + float(ASKED[name]())))
    network = engine_for(strict(fallback="pytorch"), module)
    answer = network(X)
    if name in INTERPRETER:
        torch.testing.assert_close(answer, module(X))
    assert network.statistics.calls == 0
    assert "its forward" in network.statistics.last_reason


def test_a_queue_gets_one_letter_from_every_call(strict: Strict) -> None:
    letters: queue.Queue[float] = queue.Queue()
    network = engine_for(strict(fallback="pytorch"), Answering(lambda m, y: (y, letters.put(1.0))[0]))
    for _ in range(2):
        network(X)
    assert letters.qsize() == 2


def _under_locks(y: torch.Tensor) -> torch.Tensor:
    with LOCK, OWNED, CONDITION:
        return y * len(os.fspath(HERE.name))


def test_a_lock_around_a_part_of_a_forward_and_a_path_are_no_effects(strict: Strict) -> None:
    module = Answering(lambda m, y: _under_locks(y))
    network = engine_for(strict(), module)
    torch.testing.assert_close(network(X), module(X), rtol=1e-3, atol=1e-4)
    assert network.statistics.calls == 1


@pytest.mark.parametrize("hook", [print, functools.partial(print, "called:")])
@pytest.mark.parametrize("kind", ["register_forward_hook", "register_forward_pre_hook"])
def test_a_hook_written_in_c_runs_at_every_call(strict: Strict, kind: str, hook: Callable[..., None]) -> None:
    module = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU()).eval()
    getattr(module[0], kind)(hook)
    network = engine_for(strict(fallback="pytorch"), module)
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        for _ in range(3):
            network(X)
    assert printed.getvalue().count("Linear(") == 3
    assert network.statistics.calls == 0


def _caught() -> float:
    try:
        sys.stdout.write("printed")
    except Exception:  # the trace that ends here is no error of the forward
        return 1.0
    return 0.0


@pytest.mark.parametrize("effect", [lambda: float(sys.stdout.write("printed")), _caught])
def test_an_effect_comes_about_once_at_the_first_call_too(strict: Strict, effect: Callable[[], float]) -> None:
    module = Answering(lambda m, y: y * (2.0 + effect()))
    network = engine_for(strict(fallback="pytorch"), module)
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        torch.testing.assert_close(network(X), module(X))
    assert printed.getvalue().count("printed") == 2
    assert "calls StringIO.write()" in network.statistics.last_reason


def _more_digits(module: torch.nn.Module) -> float:
    decimal.getcontext().prec += 1
    return float(decimal.getcontext().prec)


def _another_context(module: torch.nn.Module) -> float:
    decimal.setcontext(decimal.Context(prec=decimal.getcontext().prec + 1))
    return float(decimal.getcontext().prec)


def _other_errors(module: torch.nn.Module) -> float:
    before = np.geterr()["divide"]
    np.seterr(divide="ignore" if before == "warn" else "warn")
    return float(len(before))


def _other_dtype(module: torch.nn.Module) -> float:
    before = autocast.state()[1]
    dtype = torch.float16 if before is torch.bfloat16 else torch.bfloat16
    if hasattr(torch, "set_autocast_dtype"):
        torch.set_autocast_dtype("cuda", dtype)
    else:
        torch.set_autocast_gpu_dtype(dtype)
    return float(len(str(before)))


@pytest.mark.parametrize("effect", [_more_digits, _another_context, _other_errors, _other_dtype])
def test_rules_of_arithmetic_are_set_as_often_as_the_forward_is_called(
    strict: Strict, effect: Callable[[torch.nn.Module], float]
) -> None:
    module = Answering(lambda m, y: y * effect(m))
    network = engine_for(strict(fallback="pytorch"), module)
    answers, states = [], []
    for called in (module, network):
        of_autocast = autocast.taken_over(autocast.state())
        with decimal.localcontext(decimal.Context(prec=20)), np.errstate(divide="warn"), of_autocast:
            answers.append([called(X) for _ in range(3)])
            states.append((decimal.getcontext().prec, np.geterr(), autocast.state()))
    assert all(map(torch.equal, *answers))
    assert states[0] == states[1]
    assert network.statistics.calls == 0
    assert "sets how numbers" in network.statistics.last_reason


def _another_filter() -> float:
    warnings.filterwarnings("ignore", message=f"number {len(warnings.filters)}")
    return float(len(warnings.filters))


def _a_filter_of_the_list() -> float:
    rules = cast("list[Any]", warnings.filters)
    rules.append(("ignore", None, Warning, None, len(rules)))
    return float(len(warnings.filters))


def _an_entry() -> float:
    sys.modules[f"of_a_forward_{len(sys.modules)}"] = sys
    return float(sum(name.startswith("of_a_forward_") for name in sys.modules))


@pytest.mark.parametrize("effect", [_another_filter, _a_filter_of_the_list, _an_entry])
def test_filters_of_warnings_and_entries_of_modules_are_added_at_every_call(
    strict: Strict, effect: Callable[[], float]
) -> None:
    module = Answering(lambda m, y: y * effect())
    network = engine_for(strict(fallback="pytorch"), module)
    answers, added = [], []
    for called in (module, network):
        with warnings.catch_warnings():
            before, rules = set(sys.modules), len(warnings.filters)
            answers.append([called(X) for _ in range(3)])
            entries = {name for name in sys.modules if name.startswith("of_a_forward_")} - before
            added.append((len(entries), len(warnings.filters) - rules))
            for name in entries:
                del sys.modules[name]
    assert all(map(torch.equal, *answers))
    assert added[0] == added[1]
    assert sum(added[0]) == 3
    assert "sys.modules or the filters" in network.statistics.last_reason


def test_a_filter_that_is_there_after_the_first_call_keeps_one_call_in_pytorch(strict: Strict) -> None:
    module = Answering(lambda m, y: y * float(warnings.filterwarnings("ignore", message="always the same") is None))
    network = engine_for(strict(fallback="pytorch"), module)
    with warnings.catch_warnings():
        before = len(warnings.filters)
        for _ in range(3):
            torch.testing.assert_close(network(X), module(X))
        assert len(warnings.filters) == before + 1
    assert network.statistics.calls == 2


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
