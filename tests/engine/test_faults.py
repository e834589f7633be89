"""Faults planted into a generation: the answer is right, one sentence says what happened, and the next generation is fine."""

from __future__ import annotations

import ctypes
import errno
import logging
import os
import subprocess
import sys
import tempfile
import threading
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from ov_backend import Settings
from ov_backend.core import devices
from ov_backend.engine.engine import Network
from ov_backend.model.conversion import serialization
from ov_backend.model.runtime import compiled_graph
from ov_backend.store import store as store_module
from tests.helpers.small import Small, assert_right, engine_for, inputs

Plant = Callable[[pytest.MonkeyPatch], None]
ROOT = Path(__file__).parents[2]


def failing(error: BaseException) -> Callable[..., Any]:
    """A function that raises, as one of the package: what a function of the program raises reaches the caller."""

    def fail(*args: Any, **kwargs: Any) -> Any:
        raise error

    return types.FunctionType(fail.__code__, {"__name__": "ov_backend.planted"}, closure=fail.__closure__)


class _Core:
    """OpenVINO's core with one method that fails."""

    def __init__(self, method: str, error: BaseException) -> None:
        self._core, self._method, self._error = devices.core(), method, error

    def __getattr__(self, name: str) -> Any:
        return failing(self._error) if name == self._method else getattr(self._core, name)


def core_fails(method: str, error: BaseException) -> Plant:
    def plant(monkeypatch: pytest.MonkeyPatch) -> None:
        broken = _Core(method, error)
        for module in (devices, compiled_graph, serialization):
            if hasattr(module, "core"):
                monkeypatch.setattr(module, "core", lambda: broken)

    return plant


def no_space(*args: Any, **kwargs: Any) -> Any:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def no_temporary_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/nowhere/at/all")


FULL = OSError(errno.ENOSPC, "No space left on device")
OPENVINO = RuntimeError("Exception from src/core.cpp:1:\nplanted")
#: Where each fault is planted, whether OpenVINO answers in spite of it, and words of the one message.
STORE: dict[str, tuple[Plant, str]] = {
    "the disk is full when an entry is packed": (lambda m: m.setattr(store_module, "pack", no_space), "No space left"),
    "the disk is full when an entry is flushed": (lambda m: m.setattr(os, "fsync", no_space), "No space left"),
    "the folder is read-only": (
        lambda m: m.setattr(tempfile, "mkstemp", failing(OSError(errno.EROFS, "Read-only file system"))),
        "Read-only file system",
    ),
    "an entry cannot be renamed": (lambda m: m.setattr(Path, "replace", failing(PermissionError(13, "Permission denied"))),
        "denied"),
    "there is no temporary folder": (no_temporary_folder, "no temporary file can be written"),
    "the temporary folder is full": (
        lambda m: m.setattr(serialization.ov, "serialize", failing(RuntimeError("Can't write"))),
        "no temporary file can be written",
    ),
    "the folder cannot be made": (lambda m: m.setattr(os, "mkdir", failing(PermissionError(13, "Permission denied"))), "denied"),
}
PYTORCH: dict[str, tuple[Plant, str]] = {
    "OpenVINO raises at compile": (core_fails("compile_model", OPENVINO), "planted"),
    "memory is short in a compile": (core_fails("compile_model", MemoryError()), "MemoryError"),
    "OpenVINO's own allocation fails": (core_fails("compile_model", RuntimeError("bad allocation")), "bad allocation"),
    "a compile raises something odd": (core_fails("compile_model", KeyError("odd")), "odd"),
    "binding fails": (lambda m: m.setattr("ov_backend.model.runtime.program.bind_and_compile", failing(OPENVINO)), "planted"),
    "conversion fails": (lambda m: m.setattr("ov_backend.model.compiler.convert", failing(OPENVINO)), "planted"),
    "conversion has no memory": (lambda m: m.setattr("ov_backend.model.compiler.convert", failing(MemoryError())), "MemoryError"),
    "lowering fails": (lambda m: m.setattr("ov_backend.model.compiler.lower", failing(TypeError("odd"))), "odd"),
    "a compile ends its thread": (core_fails("compile_model", SystemExit(3)), "ended from outside"),
}


@pytest.fixture
def network(strict: Callable[..., Settings]) -> tuple[Network, Small]:
    module = Small()
    return engine_for(strict(fallback="pytorch"), module), module


def twice_with_a_fault(
    network: tuple[Network, Small],
    plant: Callable[[pytest.MonkeyPatch], None],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Answer the same call twice while the fault is there, with the log's warnings caught."""
    with monkeypatch.context() as planted, caplog.at_level(logging.WARNING):
        plant(planted)
        for _ in range(2):
            assert_right(*network, *inputs())


@pytest.mark.parametrize("name", STORE)
def test_a_fault_of_the_disk_costs_a_warning_and_no_answer(
    network: tuple[Network, Small], name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    plant, words = STORE[name]
    twice_with_a_fault(network, plant, monkeypatch, caplog)
    assert network[0].statistics.fallbacks == {}
    assert len(caplog.records) == 1
    assert words in caplog.text
    assert_right(*network, *inputs(9, 9))
    store = network[0].resources.store
    assert store is not None
    assert len(store.entries()) == 1, "the next graph is stored"
    assert len(caplog.records) == 1


@pytest.mark.parametrize("name", PYTORCH)
def test_a_fault_of_a_compile_is_answered_by_pytorch_and_the_next_size_by_openvino(
    network: tuple[Network, Small], name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    plant, words = PYTORCH[name]
    twice_with_a_fault(network, plant, monkeypatch, caplog)
    ((reason, count),) = network[0].statistics.fallbacks.items()
    assert count == 2
    assert words in reason
    assert "\n" not in reason
    assert len([record for record in caplog.records if "runs in PyTorch" in record.getMessage()]) == 1
    assert_right(*network, *inputs(9, 9))
    assert sum(network[0].statistics.fallbacks.values()) == 2, "OpenVINO answers the next size"


def test_a_fault_of_a_call_is_answered_by_pytorch_and_the_next_by_openvino(
    network: tuple[Network, Small], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert_right(*network, *inputs())
    for error in (OPENVINO, MemoryError(), RuntimeError(), ValueError("odd")):
        with monkeypatch.context() as planted:
            planted.setattr(compiled_graph.CompiledGraph, "__call__", failing(error))
            assert_right(*network, *inputs())
        before = network[0].statistics.calls
        assert_right(*network, *inputs())
        assert network[0].statistics.calls == before + 1
    assert sum(network[0].statistics.fallbacks.values()) == 4


def test_a_worker_that_is_shut_down_is_replaced(network: tuple[Network, Small]) -> None:
    assert_right(*network, *inputs())
    network[0].resources.worker._pool.shutdown()  # type: ignore[union-attr]
    assert_right(*network, *inputs(9, 9))
    assert network[0].statistics.fallbacks == {}


def test_a_worker_whose_thread_is_killed_is_replaced(network: tuple[Network, Small]) -> None:
    assert_right(*network, *inputs())
    (thread,) = network[0].resources.worker._pool._threads  # type: ignore[union-attr]
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(SystemExit))
    network[0].resources.worker._pool._work_queue.put(None)  # type: ignore[union-attr]  # wakes it
    thread.join(30)
    assert not thread.is_alive()
    done = threading.Event()

    @torch.no_grad()
    def call() -> None:
        assert_right(*network, *inputs(9, 9))
        done.set()

    caller = threading.Thread(target=call, daemon=True)
    caller.start()
    caller.join(60)
    assert done.is_set(), "the call hangs"
    assert network[0].statistics.fallbacks == {}


LIMITED = """
import resource, sys, torch, ov_backend
from ov_backend.engine.engine import Engine
sys.path.insert(0, sys.argv[1])
torch.set_grad_enabled(False)
small, large = (torch.nn.Sequential(*(torch.nn.Linear(n, n) for _ in range(6))).eval() for n in (64, 2048))
engine = Engine(ov_backend.Settings(precision="f32", model_caching=False))
def right(name, module, n):
    network = engine.networks.get(name) or engine.network(name, module, module.forward)
    x = torch.randn(2, n)
    torch.testing.assert_close(network(x), module(x), rtol=1e-3, atol=1e-3)
right("small", small, 64)
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (60 << 20), resource.RLIM_INFINITY))
right("large", large, 2048)
right("small", small, 64)
resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
print(sum(engine.stats()["large"]["fallbacks"].values()), engine.stats()["small"]["fallbacks"])
"""


@pytest.mark.skipif(sys.platform != "linux", reason="a limit of memory is Linux's")
def test_a_limit_of_memory_in_the_middle_of_a_compile_is_answered_by_pytorch() -> None:
    child = subprocess.run(
        [sys.executable, "-c", LIMITED, str(ROOT)], cwd=ROOT, capture_output=True, text=True, check=False, timeout=300
    )
    assert child.returncode == 0, child.stderr[-3000:]
    assert child.stdout.split() == ["1", "{}"], child.stdout
    assert "Traceback" not in child.stderr
