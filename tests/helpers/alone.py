"""Run a test's measurement in a process of its own, where nothing but what it does moves the process's memory."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Any


def alone(function: Callable[..., Any], *args: Any) -> Any:
    """What ``function(*args)`` returns in a fresh process; what it raises is raised here.

    Args:
        function: of a module's top level; it and its arguments are handed over by pickle.
    """
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *args).result()
