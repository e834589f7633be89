"""The built-in LoRA extension: it writes into weights lazily, at each layer's next forward, which a compiled network
never comes to. So its own function is called over the layers before their weights are looked at; it also takes out what
is no longer wanted."""

from __future__ import annotations

import sys
from typing import Any
from weakref import WeakKeyDictionary

import torch

#: What the extension keeps on the layers: names and backups of the weights, neither code nor weights of a network.
ATTRIBUTES = frozenset(
    {"network_layer_name", "network_current_names", "network_weights_backup", "network_bias_backup", "fp16_weight", "fp16_bias"}
)

#: The layers whose forwards it replaces, to write into their weights.
CHANGED = (torch.nn.Linear, torch.nn.Conv2d, torch.nn.GroupNorm, torch.nn.LayerNorm, torch.nn.MultiheadAttention)


class Lora:
    """The layers of each module that LoRAs may change, found once."""

    def __init__(self) -> None:
        self._layers: WeakKeyDictionary[torch.nn.Module, list[torch.nn.Module]] = WeakKeyDictionary()

    def apply(self, module: torch.nn.Module) -> None:
        """Bring a module's weights to the set of LoRAs now wanted, as its layers' forwards would do."""
        extension = _extension()
        if extension is None or _functional():
            return
        wanted = tuple((x.name, x.te_multiplier, x.unet_multiplier, x.dyn_dim) for x in extension.loaded_networks)
        for layer in self._of(module):
            if vars(layer).get("network_current_names", ()) != wanted:
                extension.network_apply_weights(layer)

    def _of(self, module: torch.nn.Module) -> list[torch.nn.Module]:
        if module not in self._layers:
            # an attention's own projection is changed together with it, not by itself
            inner = {id(m.out_proj) for m in module.modules() if isinstance(m, torch.nn.MultiheadAttention)}
            layers = [m for m in module.modules() if isinstance(m, CHANGED) and id(m) not in inner]
            named = [m for m in layers if hasattr(m, "network_layer_name")]
            if not named:
                return []
            self._layers[module] = named
        return self._layers[module]


def active() -> bool:
    """Whether LoRAs are wanted at all."""
    extension = _extension()
    return extension is not None and bool(extension.loaded_networks)


def computed_beside_weights() -> bool:
    """Whether LoRAs are wanted and computed in the layers' forwards, without touching weights."""
    return active() and _functional()


def _functional() -> bool:
    from modules import shared

    return bool(getattr(shared.opts, "lora_functional", False))


def _extension() -> Any:
    extension = sys.modules.get("networks")
    return extension if hasattr(extension, "network_apply_weights") else None
