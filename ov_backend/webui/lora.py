"""The built-in LoRA extension.

It writes LoRAs into a layer's weights at the layer's next forward, which a compiled network never calls. So before each
call of a network, the extension's own function is called for every layer; it also removes LoRAs that are no longer set.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import torch
from modules import shared

#: Attributes of the extension on the layers, names and backups of weights: neither code nor weights of a network.
ATTRIBUTES = frozenset(
    {"network_layer_name", "network_current_names", "network_weights_backup", "network_bias_backup", "fp16_weight", "fp16_bias"}
)

#: The extension's Python module; its state changes with the LoRAs that are set, which the weights tell already.
MODULES = frozenset({"networks"})

#: The classes whose forwards it replaces, to write into their weights.
_LAYERS = (torch.nn.Linear, torch.nn.Conv2d, torch.nn.GroupNorm, torch.nn.LayerNorm, torch.nn.MultiheadAttention)


class LoraWeights:
    """Brings modules' weights up to date; a module's layers are looked up once."""

    def __init__(self) -> None:
        self._layers: WeakKeyDictionary[torch.nn.Module, list[torch.nn.Module]] = WeakKeyDictionary()

    def apply(self, module: torch.nn.Module) -> None:
        """Write the LoRAs that are set now into a module's weights, as its layers' forwards would do."""
        extension = _extension()
        if extension is None:
            return
        if _beside_weights():
            self._restore(extension, module)
            return
        names = tuple((x.name, x.te_multiplier, x.unet_multiplier, x.dyn_dim) for x in extension.loaded_networks)
        for layer in self._layers_of(module):
            if vars(layer).get("network_current_names", ()) != names:
                extension.network_apply_weights(layer)

    def _restore(self, extension: Any, module: torch.nn.Module) -> None:
        """Take LoRAs out of the weights, as the layers' forwards do that compute them beside the weights."""
        if not extension.loaded_networks:
            return
        for layer in self._layers_of(module):
            if vars(layer).get("network_weights_backup") is not None or vars(layer).get("network_bias_backup") is not None:
                extension.network_restore_weights_from_backup(layer)
                extension.network_reset_cached_weight(layer)

    def _layers_of(self, module: torch.nn.Module) -> list[torch.nn.Module]:
        if module not in self._layers:
            # an attention's own projection is changed together with it, not by itself
            projections = {id(m.out_proj) for m in module.modules() if isinstance(m, torch.nn.MultiheadAttention)}
            layers = [m for m in module.modules() if isinstance(m, _LAYERS) and id(m) not in projections]
            named = [m for m in layers if hasattr(m, "network_layer_name")]
            if not named:
                return []
            self._layers[module] = named
        return self._layers[module]


def traced_functions() -> tuple[Callable[..., Any], ...]:
    """The extension's functions that a trace runs in the layers' forwards."""
    extension = _extension()
    return () if extension is None else (extension.network_apply_weights,)


def computed_beside_weights(module: torch.nn.Module) -> bool:
    """Whether LoRAs are set for layers of a module, and computed in the layers' forwards, without touching weights."""
    extension = _extension()
    if extension is None or not extension.loaded_networks or not _beside_weights():
        return False
    names = {name for network in extension.loaded_networks for name in network.modules}
    return any(vars(layer).get("network_layer_name") in names for layer in module.modules())


def _beside_weights() -> bool:
    return bool(getattr(shared.opts, "lora_functional", False))


def _extension() -> Any:
    extension = sys.modules.get("networks")
    return extension if hasattr(extension, "network_apply_weights") else None
