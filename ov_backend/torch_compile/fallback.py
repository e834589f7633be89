"""Runs graphs that OpenVINO cannot run: in inductor if possible, otherwise in eager PyTorch."""

from __future__ import annotations

import functools
import logging
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from ov_backend.core.errors import first_line, pass_on_signals
from ov_backend.core.settings import Settings, environment

log = logging.getLogger(__name__)


@functools.lru_cache(maxsize=1)
def compiler_found() -> bool:
    """Whether there is a C++ compiler, which inductor needs."""
    return any(shutil.which(name) for name in (environment("CXX") or "", "g++", "clang++", "cl") if name)


@dataclass
class Answered:
    """What answered the last call of a graph in PyTorch: "inductor" or "eager"; "" before the first call."""

    by: str = ""


class Fallback:
    """One graph in PyTorch; :attr:`answered` says what answered the last call.

    Of a ``random`` graph inductor would draw other numbers than PyTorch, so it is not used.
    """

    def __init__(self, graph: Callable[..., Any], settings: Settings) -> None:
        self._graph = graph
        self._use_inductor = settings.fallback == "inductor"
        self._compiled: Callable[..., Any] | None = None
        self.random = False
        self.answered = Answered()

    def __call__(self, *full: Any) -> Any:
        """Answer one call."""
        if self._compiled is None and self._use_inductor and not self.random and compiler_found():
            graph = self._graph
            numbers = any(not isinstance(value, torch.Tensor) for value in full)  # inductor takes them as inputs then
            dynamic = None if numbers else False
            self._compiled = torch.compile(lambda *values: graph(*values), backend="inductor", dynamic=dynamic)
        if self._compiled is None or not self._use_inductor:
            self.answered.by = "eager"
            return self._graph(*full)
        try:
            result = self._compiled(*full)
        except Exception as error:  # a failure of inductor must not keep the call from being answered
            pass_on_signals(getattr(error, "inner_exception", error))
            log.warning("Inductor cannot compile it either: %s.", first_line(error))
            self._use_inductor, self.answered.by = False, "eager"
            return self._graph(*full)
        self.answered.by = "inductor"
        return result
