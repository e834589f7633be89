"""Where a block stood when its call was recorded, so that the call can be computed again by what stands there now."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from ov_backend.core.errors import OVBackendError


class BlockGone(OVBackendError):
    """A block whose call was recorded is no longer in the network."""


class _Repeats(Protocol):
    state: tuple[str, str, str]

    def repeat(self, *args: Any, **kwargs: Any) -> Any: ...


class _HasBlocks(Protocol):
    def block_at(self, path: str | None, original: Callable[..., Any], module: torch.nn.Module) -> _Repeats | None: ...


@dataclass(frozen=True)
class BlockPlace:
    """The place of a block. Another forward on its module makes it another block, which stands in the same place.

    ``original`` is PyTorch's way to call the module; ``path`` is None where the module is not a part of the network.
    """

    whole: weakref.ref[_HasBlocks]
    module: weakref.ref[torch.nn.Module]
    original: Callable[..., Any]
    path: str | None

    def repeat(self, *args: Any, **kwargs: Any) -> Any:
        """Answer a call of the block that stands here now.

        Raises:
            BlockGone: the module is no longer here, or it is computed in PyTorch.
        """
        block = self._block()
        if block is None:
            raise BlockGone("a block that was observed is no longer in the network")
        return block.repeat(*args, **kwargs)

    def state(self) -> tuple[str, str, str]:
        """What the block's last answer was computed with, see :class:`CompiledEntry`; empty if it is no longer there."""
        block = self._block()
        return ("", "", "") if block is None else block.state

    def _block(self) -> _Repeats | None:
        whole, module = self.whole(), self.module()
        return None if whole is None or module is None else whole.block_at(self.path, self.original, module)
