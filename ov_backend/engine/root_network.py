"""A network that its host calls now and then, beside those that make a picture: an upscaler, a detector, an interrogator."""

from __future__ import annotations

from typing import Any

from ov_backend.core.settings import Settings
from ov_backend.engine.blocks.blocks import Blockwise
from ov_backend.engine.int8.blocks_precision import BlocksPrecision
from ov_backend.engine.int8.low_precision import LowPrecision
from ov_backend.engine.request import Form
from ov_backend.guards.signature import Signature
from ov_backend.guards.weights import WeightsGuard


class RootNetwork(Blockwise):
    """As of every network that is answered as a whole, else by its blocks, else by PyTorch.

    Attributes:
        in_f32: whether it is computed in f32 where the engine's precision is lower.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.in_f32 = False
        common = self.resources, self.name, self.module, self.hooks, self.statistics
        self._lookup.low_precision = _Precision(self, *common)
        self.blocks_precision = _BlocksPrecision(self, *common)

    def settings(self, settings: Settings) -> Settings:
        """The settings in which it is compiled."""
        return settings.in_f32() if self.in_f32 else settings

    def _note(self, signature: Signature) -> None:
        """Nothing: whether it is called does not depend on what a run asks of the model."""


class _Precision(LowPrecision):
    def __init__(self, network: RootNetwork, *common: Any) -> None:
        super().__init__(*common)
        self._network = network

    def form(self, settings: Settings, weights: WeightsGuard) -> Form:
        """The form in which the network is compiled now."""
        return super().form(self._network.settings(settings), weights)


class _BlocksPrecision(BlocksPrecision):
    def __init__(self, network: RootNetwork, *common: Any) -> None:
        super().__init__(*common)
        self._network = network

    def form(self, path: str | None, settings: Settings) -> Form:
        """The form in which a block is compiled now."""
        return super().form(path, self._network.settings(settings))
