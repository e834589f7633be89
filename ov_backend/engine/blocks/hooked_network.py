"""A network on which, or inside which, other code has hooks that move weights or keep state.

Where such hooks keep it from being used as a whole, PyTorch runs its forward. Its blocks are answered as those of any network
are, and what lies below a hook on a module inside it is a network of its own, with its name and its statistics.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Any

import torch

from ov_backend.core.errors import CaptureError, OVBackendError
from ov_backend.core.patching import Patch
from ov_backend.engine import worker
from ov_backend.engine.blocks.below_hooks import CellPatch, is_wrapped, place_below
from ov_backend.engine.blocks.on_demand import BlockwiseOnDemand
from ov_backend.engine.hooks import NetworkHooks
from ov_backend.engine.retried import Retried

_running: ContextVar[HookedNetwork | None] = ContextVar("running", default=None)


class HookedNetwork(BlockwiseOnDemand):
    """A network that is answered as a whole, else by its blocks and by what lies below the hooks inside it, else by PyTorch.

    It is made as a network is.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._parts: list[_Part] = []
        self._patches: list[Patch | CellPatch] = []
        #: What stands on the modules inside in the place of their classes' forwards.
        self._wrappers: dict[int, Any] = {}

    def refusal(self, module: torch.nn.Module) -> str:
        """As of every network, but a call is tried as a whole although a hook inside has failed: what that does may change."""
        return "" if module is self.module and self._parts else super().refusal(module)

    def _by_blocks(self, reason: str, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        self._look_for_hooks()
        token = _running.set(self)
        try:
            return super()._by_blocks(reason, forward, args, kwargs)
        finally:
            _running.reset(token)

    def _look_for_hooks(self) -> None:
        """Make networks of the modules inside that have got a hook since the last look."""
        for module in self.module.modules():
            if module is self.module or not is_wrapped(module) or self._wrappers.get(id(module)) is vars(module)["forward"]:
                continue
            self._wrappers[id(module)] = vars(module)["forward"]
            if (place := place_below(module)) is not None:
                self._patches.append(place.patch(lambda forward, module=module: self._part(module, forward)))  # type: ignore[misc]

    def _part(self, module: torch.nn.Module, forward: Callable[..., Any]) -> Callable[..., Any]:
        self.resources.keeps_unloaded = True  # weights that a hook takes away come back
        part = _Part(self.resources, self.name, module, forward, NetworkHooks(fallback=forward), self.statistics)
        self._parts.append(part)

        def call(*args: Any, **kwargs: Any) -> Any:
            if _running.get() is not self or worker.inside():
                return forward(*args, **kwargs)
            return part(*args, **kwargs)

        return call

    def _inner(self) -> list[Retried]:
        return [*super()._inner(), *self._parts]

    def restore(self) -> None:
        """Restore the forwards of the modules inside."""
        for patch in self._patches:
            patch.undo()
        self._patches.clear()
        self._parts.clear()


class _Part(Retried):
    """A module inside a network, below a hook; one that cannot be captured is not tried again."""

    _is_inside = True

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Answer one call by OpenVINO if possible, otherwise by the original forward."""
        return self.forward(*args, **kwargs) if self.why_left() else super().__call__(*args, **kwargs)

    def _count(self) -> None:
        self.statistics.block_calls += 1

    def _fall_back(self, error: OVBackendError, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        self.left = str(error) if isinstance(error, CaptureError) else ""
        self.statistics.leave_block(self.name, type(self.module).__name__, str(error))
        return self._fallback(*args, **kwargs)
