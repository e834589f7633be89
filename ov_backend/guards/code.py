"""The guards of a module's code and state and of its weights: a cheap look before every call at all that a trace has read.

Extensions override an instance's forward, swap a block's class, add hooks, turn padding circular, set a scale. The full walk
(some hundred milliseconds for a Stable Diffusion UNet) is only taken again when the cheap look differs.
"""

from __future__ import annotations

import gc
import logging
import os
import types
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from ov_backend.core.errors import CaptureError
from ov_backend.guards.traced_code import TracedCode, own_code
from ov_backend.guards.versions import is_of_package
from ov_backend.guards.walk import Walk
from ov_backend.guards.watch import LooseTensor
from ov_backend.guards.weights import Checksums, WeightsGuard
from ov_backend.guards.what_differed import Description

log = logging.getLogger(__name__)


class CodeGuard:
    """Watches the code and state of one module by the newest :class:`Walk`. All that it says is current after :meth:`check`."""

    def __init__(
        self,
        module: torch.nn.Module,
        roots: Sequence[Any] = (),
        ignore: frozenset[str] = frozenset(),
        host_modules: frozenset[str] = frozenset(),
        traced: TracedCode | None = None,
    ) -> None:
        self._module, self._roots, self._ignore, self._host_modules = module, tuple(roots), ignore, host_modules
        self.traced = traced
        self._look()

    @property
    def containers(self) -> list[Any]:
        """The dicts, lists, sets, arrays, buffers, objects with slots and classes that are reachable, and the environment."""
        watch = self._walk.watch
        classes = [cls for cls in watch.classes if not is_of_package(cls)]
        buffers = [os.environ] if self._walk.reads_environment else []
        return [*watch.tables, *watch.values, *watch.slotted, *classes, *buffers]

    @property
    def names(self) -> list[tuple[dict[str, Any], list[str]]]:
        """The names of Python modules that code reads, each with the table in which they stand."""
        return [(table, names) for table, names in self._walk.watch.names if isinstance(table, dict)]

    def check(self) -> bool:
        """Whether code and state are what they were at the last check."""
        if self.untouched():
            return True
        before = self.fingerprint
        self._look()
        return self.fingerprint == before

    def untouched(self) -> bool:
        """Whether nothing has changed since the last check; only looks."""
        return self._walk.watch.same()

    def after_trace(self, executed: Mapping[types.CodeType, str]) -> CodeGuard:
        """A guard of the code that a trace has run, which comes with the names of its Python modules.

        Raises:
            CaptureError: some of it cannot be found again.
        """
        traced = TracedCode.of(executed)
        if self.traced is not None and replace(self.traced, roots=()) == traced:
            return self
        guard = self._for(traced)
        missed = own_code(executed).keys() - guard._walk.codes
        if not missed:
            return guard
        functions = [each for each in gc.get_referrers(*missed) if isinstance(each, types.FunctionType)]
        lost = missed - {function.__code__ for function in functions}
        if lost:
            code = next(iter(lost))
            raise CaptureError(f"it runs {code.co_name} of {code.co_filename}, a function that is gone and cannot be watched")
        functions.sort(key=lambda function: (function.__module__ or "", function.__qualname__))
        log.debug("No name leads to %s; they are watched as well.", [function.__qualname__ for function in functions])
        return self._for(replace(traced, roots=tuple(functions)))

    def covers(self, other: CodeGuard) -> bool:
        """Whether everything that another guard watches, and a trace might change or read, is watched by this one too."""
        containers, tensors = set(map(id, self.containers)), {id(each.tensor) for each in self.tensors}
        watched = all(id(container) in containers for container in other.containers)
        return watched and all(id(each.tensor) in tensors for each in other.tensors)

    def _for(self, traced: TracedCode) -> CodeGuard:
        return CodeGuard(self._module, self._roots, self._ignore, self._host_modules, traced)

    def _look(self) -> None:
        traced = self.traced
        roots = self._roots if traced is None else (*self._roots, *traced.roots)
        walk = self._walk = Walk(self._module, roots, self._ignore, self._host_modules, traced)
        self.fingerprint, self.description, self.refused = walk.fingerprint, walk.description, walk.refused
        self.tensors, self.caches = walk.tensors, walk.caches


class FixedCode:
    """In the place of a :class:`CodeGuard` where Dynamo guards code and state: nothing is looked at."""

    fingerprint = ""
    refused = ""
    description = Description()
    traced = TracedCode(frozenset())
    tensors: tuple[LooseTensor, ...] = ()
    containers: tuple[Any, ...] = ()
    names: tuple[Any, ...] = ()
    caches: tuple[Any, ...] = ()

    def check(self) -> bool:
        """Always true."""
        return True

    def untouched(self) -> bool:
        """Always true."""
        return True


class Guard:
    """Watches everything that a graph depends on beside the call itself.

    All guards of a network share their checksums, so that weights are read once.
    """

    def __init__(self, module: torch.nn.Module, code: CodeGuard | FixedCode, checksums: Checksums) -> None:
        self.code = code
        self.weights = WeightsGuard(module, lambda: code.tensors, checksums)

    def check(self, starts: bool = False) -> None:
        """Bring the fingerprint of the code and the digest of the weights up to date.

        Where a run of calls ``starts``, or a compile, the weights are read in full unless they were a moment ago.
        """
        if starts:
            self.weights.read_again()
        if not self.code.untouched():
            self.code.check()
            self.weights.refresh()  # there may be new tensors
        elif not self.code.refused:
            self.weights.check()

    def is_current(self, fingerprint: str, generation: int | None) -> bool:
        """Whether the code, and if a generation of the weights is given these, are still what they were."""
        self.code.check()  # values that a forward stores on its module do not count as a change of code
        if self.code.fingerprint != fingerprint:
            return False
        return generation is None or (self.weights.generation == generation and self.weights.untouched())
