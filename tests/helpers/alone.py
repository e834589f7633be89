"""Run a function in a fresh process: for measurements of memory, and for all that the next start of a program finds."""

from __future__ import annotations

import functools
import multiprocessing
import os
import threading
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import forkserver
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from typing import Any

#: The fresh processes hash strings in another order than the tests' own process, whose seed is random.
HASH_SEED = "12345"
_starting = threading.Lock()


def fresh_process(function: Callable[..., None], *args: Any) -> BaseProcess:
    """A fresh process, not yet started, that runs ``function(*args)``, whose ``SystemExit`` gives its exit code."""
    return _context().Process(target=function, args=args)  # type: ignore[attr-defined]


def alone(function: Callable[..., Any], *args: Any) -> Any:
    """What ``function(*args)`` returns in a fresh process; what it raises is raised here.

    Args:
        function: of a module's top level; it and its arguments are pickled, as is its result.
    """
    with ProcessPoolExecutor(1, mp_context=_context()) as pool:
        return pool.submit(function, *args).result()


def _context() -> BaseContext:
    """Processes are forked from a server, where there is one (not on Windows): an import of torch takes seconds."""
    with _starting:  # one thread at a time changes the environment
        return _started()


@functools.cache
def _started() -> BaseContext:
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.helpers.forked"])
    seed = os.environ.get("PYTHONHASHSEED")
    os.environ["PYTHONHASHSEED"] = HASH_SEED
    try:
        forkserver.ensure_running()
    finally:
        del os.environ["PYTHONHASHSEED"]
        if seed is not None:
            os.environ["PYTHONHASHSEED"] = seed
    return context
