"""A graph that OpenVINO cannot take, in PyTorch: through inductor where that is possible, else as it is."""

from __future__ import annotations

import functools
import logging
import shutil
from collections.abc import Callable
from typing import Any

import torch

from ov_backend.settings import Settings, environment

log = logging.getLogger(__name__)


@functools.lru_cache(maxsize=1)
def compiler_found() -> bool:
    """Whether there is a C++ compiler, which inductor cannot do without."""
    return any(shutil.which(name) for name in (environment("CXX") or "", "g++", "clang++", "cl") if name)


class Fallback:
    """One graph in PyTorch.

    Attributes:
        random: it draws random numbers; inductor would draw others than PyTorch, so it is left out.
        answered_by: "inductor" or "eager" once the graph has run, "" before.
    """

    def __init__(self, graph: Callable[..., Any], settings: Settings) -> None:
        self._graph = graph
        self._wanted = settings.fallback == "inductor"
        self._compiled: Callable[..., Any] | None = None
        self.random = False
        self.answered_by = ""

    def __call__(self, *full: Any) -> Any:
        """Answer one call."""
        if self._compiled is None and self._wanted and not self.random and compiler_found():
            graph = self._graph
            self._compiled = torch.compile(lambda *values: graph(*values), backend="inductor", dynamic=False)
        if self._compiled is None or not self._wanted:
            self.answered_by = "eager"
            return self._graph(*full)
        try:
            result = self._compiled(*full)
        except Exception as error:  # inductor's own troubles are no reason not to answer
            log.warning("Inductor cannot compile it either: %s.", str(error).strip().splitlines()[0])
            self._wanted, self.answered_by = False, "eager"
            return self._graph(*full)
        self.answered_by = "inductor"
        return result
