"""AUTOMATIC1111's WebUI, v1.10."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from modules import sd_hijack, sd_samplers_common

from ov_backend.engine.engine import NetworkHooks
from ov_backend.hosts.webui.a1111 import compatibility
from ov_backend.hosts.webui.a1111.lora import LoraWeights
from ov_backend.hosts.webui.a1111.networks import PATCH_POINTS
from ov_backend.hosts.webui.low_vram import WithoutMoves
from ov_backend.hosts.webui.patch_points import HostNetwork
from ov_backend.hosts.webui.protocol import WebUI


class A1111(WebUI):
    """AUTOMATIC1111's WebUI."""

    name = "AUTOMATIC1111's WebUI"
    patch_points = PATCH_POINTS
    interruption = sd_samplers_common.InterruptedException

    def __init__(self) -> None:
        self._lora_weights = LoraWeights()

    def hooks(self, network: HostNetwork) -> NetworkHooks:
        """See :mod:`ov_backend.hosts.webui.a1111.compatibility`."""
        return compatibility.hooks(network)

    def hooks_of_other(self, module: torch.nn.Module) -> NetworkHooks:
        """See :mod:`ov_backend.hosts.webui.a1111.compatibility`."""
        return compatibility.hooks_of_other(module)

    def without_moves(self, module: torch.nn.Module) -> WithoutMoves:
        """The hooks of ``--lowvram``."""
        return WithoutMoves(module.modules())

    def update_weights(self, module: torch.nn.Module) -> None:
        """The extensions write LoRAs into a layer's weights at the layer's next forward, which a compiled network never calls."""
        self._lora_weights.apply(module)

    def replaced(self, network: HostNetwork) -> str:
        """Another extension's SD Unet."""
        return compatibility.replaced(network)

    def refusal(self, network: HostNetwork, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] = {}) -> str:
        """What other extensions have changed on the modules; a call's arguments change nothing here."""
        return compatibility.refusal(network)

    def tokens(self, prompt: str) -> int:
        """As the page's counter shows it."""
        return int(sd_hijack.model_hijack.get_prompt_lengths(prompt)[1])


HOST = A1111()
