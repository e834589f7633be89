"""The guard of a module's code and state: a cheap look before every call at everything that a forward can read.

Extensions override an instance's forward, swap a block's class, add hooks, turn padding circular, set a scale. The full walk
(some hundred milliseconds for a Stable Diffusion UNet) is only taken again when the cheap look differs.
"""

from __future__ import annotations

import gc
import logging
import types
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ov_backend.errors import CaptureError
from ov_backend.guards.describe import versioned
from ov_backend.guards.values import LooseTensor
from ov_backend.guards.walk import Walk

log = logging.getLogger(__name__)

#: This package runs in every trace; its version is in every key.
_OWN = frozenset({"ov_backend"})


class CodeGuard:
    """Watches the code and state of one module; ``fingerprint`` is current after :meth:`check`.

    Args:
        module: the module.
        roots: the functions that are called from outside, usually the module's own forward.
        ignore: names of attributes that a host keeps on modules for its own ends.
        host_modules: names of Python modules of a host whose state the host accounts for itself.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        roots: Sequence[Any] = (),
        ignore: frozenset[str] = frozenset(),
        host_modules: frozenset[str] = frozenset(),
    ) -> None:
        self._module, self._roots, self._ignore, self._host_modules = module, tuple(roots), ignore, host_modules
        #: Code that a trace has run before the walk came by it.
        self._included: set[types.CodeType] = set()
        self._walk = self._walked()

    @property
    def fingerprint(self) -> str:
        """Of everything that the forward can read, apart from its weights' values."""
        return self._walk.fingerprint

    @property
    def tensors(self) -> list[LooseTensor]:
        """The tensors outside parameters and buffers."""
        return self._walk.tensors

    @property
    def tables(self) -> list[Any]:
        """The dicts and lists in reach."""
        return self._walk.watch.tables

    @property
    def opaque(self) -> list[str]:
        """What the fingerprint could not describe, in words; a graph is not stored under such a fingerprint."""
        return self._walk.opaque

    @property
    def refused(self) -> str:
        """Why no trace would be right, or ""."""
        return self._walk.refused

    def check(self) -> bool:
        """Whether code and state are what they were at the last check."""
        if self.untouched():
            return True
        before = self.fingerprint
        self._walk = self._walked()
        return self.fingerprint == before

    def untouched(self) -> bool:
        """Whether nothing has changed since the last check; only looks."""
        return self._walk.watch.same()

    def include(self, executed: Mapping[types.CodeType, str]) -> bool:
        """Whether the walk came by all code that a trace has run; what it missed is watched from now on.

        Args:
            executed: code objects, each with the name of its Python module.

        Raises:
            CaptureError: some of it cannot be found again.
        """
        missed = {code: name for code, name in executed.items() if self._is_missed(code, name)}
        if not missed:
            return True
        functions = [each for each in gc.get_referrers(*missed) if isinstance(each, types.FunctionType)]
        lost = set(missed) - {function.__code__ for function in functions}
        if lost:
            code = next(iter(lost))
            raise CaptureError(f"it runs {code.co_name} of {code.co_filename}, a function that is gone and cannot be watched")
        functions.sort(key=lambda function: (function.__module__ or "", function.__qualname__))
        log.debug("The guard missed %s; they are watched from now on.", [function.__qualname__ for function in functions])
        self._included |= missed.keys()
        self._roots = (*self._roots, *functions)
        self._walk = self._walked()
        return False

    def _is_missed(self, code: types.CodeType, module: str) -> bool:
        seen = code in self._walk.codes or code in self._included
        return not seen and not versioned(module) and module.partition(".")[0] not in _OWN

    def _walked(self) -> Walk:
        return Walk(self._module, self._roots, self._ignore, self._host_modules)


class FixedCode:
    """In the place of a :class:`CodeGuard` where Dynamo guards code and state: nothing is looked at."""

    fingerprint = ""
    refused = ""
    tensors: tuple[LooseTensor, ...] = ()
    tables: tuple[Any, ...] = ()
    opaque: tuple[str, ...] = ()

    def check(self) -> bool:
        """Always true."""
        return True

    def untouched(self) -> bool:
        """Always true."""
        return True

    def include(self, executed: Mapping[types.CodeType, str]) -> bool:
        """Always true."""
        return True
