"""A network by its blocks where no host patches the calls of modules: they are patched while its forward runs in PyTorch."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from ov_backend.core.errors import DeviceError, OVBackendError
from ov_backend.core.patching import is_patched
from ov_backend.engine.blocks.blocks import Blockwise
from ov_backend.engine.blocks.patched_calls import patch_calls
from ov_backend.engine.calls_patch import CallsPatch
from ov_backend.engine.network import Network


class BlockwiseOnDemand(Blockwise):
    """As :class:`Blockwise`, and nothing else needs to patch the calls of modules. Every call is tried as a whole first.

    Where no module with children is a block, those without children that multiply by weights are.
    """

    _reason = ""
    _takes_layers = False

    def _fall_back(self, error: OVBackendError, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        if self.resources.settings.fallback == "raise" or isinstance(error, DeviceError) or not self._may_compute():
            return Network._fall_back(self, error, args, kwargs)
        if self._reason != str(error):  # what keeps blocks in PyTorch may have been the same
            self._reason = str(error)
            self.retry()
        return self.by_blocks(self._reason, self._fallback, args, kwargs)

    def _may_compute(self) -> bool:
        """Whether blocks can be answered under the conditions of this call."""
        try:
            self.check_conditions()
        except OVBackendError:
            return False
        return True

    def _by_blocks(self, reason: str, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        before = self.statistics.block_calls
        self._takes_layers |= not any(child._modules for child in self.module.modules() if child is not self.module)
        with _patched():
            result = super()._by_blocks(reason, forward, args, kwargs)
        self._takes_layers |= self.statistics.block_calls == before  # from the next call on
        return result

    def _may_divide_at(self, module: torch.nn.Module) -> bool:
        return super()._may_divide_at(module) or (self._takes_layers and _multiplies(module))


def _multiplies(module: torch.nn.Module) -> bool:
    """Whether a module multiplies by weights, as far as these tell: it has a matrix that is no table to look up rows in."""
    is_table = isinstance(module, (torch.nn.Embedding, torch.nn.EmbeddingBag))
    return not is_table and any(weight is not None and weight.dim() > 1 for weight in module._parameters.values())


class _SharedPatch:
    """One patch for all networks that run by their blocks at the moment, in whatever thread and however nested."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._patch: CallsPatch | None = None

    @contextlib.contextmanager
    def __call__(self) -> Iterator[None]:
        """In this block, a network that runs by its blocks meets the calls of its modules."""
        with self._lock:
            if not self._users and not is_patched(torch.nn.Module.__call__):  # else a host has patched them
                self._patch = patch_calls()
            self._users += 1
        try:
            yield
        finally:
            with self._lock:
                self._users -= 1
                if not self._users and self._patch is not None:
                    self._patch.undo()
                    self._patch = None


_patched = _SharedPatch()
