"""A network that its host calls now and then, beside those that make a picture: an upscaler, a detector, an interrogator."""

from __future__ import annotations

from typing import Any

from ov_backend.engine.blocks.blocks import Blockwise
from ov_backend.guards.signature import Signature


class RootNetwork(Blockwise):
    """As of every network that is answered as a whole, else by its blocks, else by PyTorch.

    Attributes:
        in_f32: whether it is computed in f32 where the engine's precision is lower.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.in_f32 = False
        self._lookup.in_f32 = lambda: self.in_f32

    def _note(self, signature: Signature) -> None:
        """Nothing: whether it is called does not depend on what a run asks of the model."""
