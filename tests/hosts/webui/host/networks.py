"""The built-in LoRA extension: a layer's forward writes LoRAs into its weights, and restores them, when it is called."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from modules import shared

#: The setting with which it computes LoRAs beside the weights.
SETTING = "lora_functional"
loaded_networks: list[Any] = []
CLASSES = (torch.nn.Linear, torch.nn.Conv2d, torch.nn.GroupNorm, torch.nn.LayerNorm)
#: What stood on the classes, as ``Linear_forward``; None while it is not patched.
originals: SimpleNamespace | None = None


class Network:
    """A LoRA: a seeded change to every matrix of UNet and text encoder."""

    def __init__(self, name: str, strength: float) -> None:
        self.name, self.te_multiplier, self.unet_multiplier, self.dyn_dim = name, strength, strength, None
        self.modules: dict[str, torch.Tensor] = {layer.network_layer_name: self._noise(layer) for layer in _matrices()}

    def change(self, layer: torch.nn.Module) -> torch.Tensor | None:
        name: str = layer.network_layer_name  # type: ignore[assignment]
        noise = self.modules.get(name)
        if noise is None:
            return None
        return 0.7 * (self.te_multiplier if name.startswith("cond_stage") else self.unet_multiplier) * noise

    def _noise(self, layer: torch.nn.Module) -> torch.Tensor:
        weight: torch.Tensor = layer.weight  # type: ignore[assignment]
        seed = sum((i + 1) * ord(c) for i, c in enumerate(f"{self.name}{layer.network_layer_name}")) % 2**31
        return torch.randn(weight.shape, generator=torch.Generator().manual_seed(seed)) / weight.shape[1] ** 0.5


def _matrices() -> list[Any]:
    """The layers that a LoRA changes."""
    model = shared.sd_model
    layers = [layer for root in (model.model, model.cond_stage_model) for layer in root.modules()]
    named = [layer for layer in layers if hasattr(layer, "network_layer_name")]
    return [layer for layer in named if layer.weight.dim() == 2 and not layer.network_layer_name.startswith("first_stage")]


def load_networks(tags: list[tuple[str, float]]) -> None:
    loaded_networks[:] = [Network(name, strength) for name, strength in tags]


def network_apply_weights(layer: Any) -> None:
    if getattr(layer, "network_layer_name", None) is None:
        return
    names = tuple((x.name, x.te_multiplier, x.unet_multiplier, x.dyn_dim) for x in loaded_networks)
    current = getattr(layer, "network_current_names", ())
    if names and getattr(layer, "network_weights_backup", None) is None:
        layer.network_weights_backup = layer.weight.detach().clone()
    if current == names:
        return
    with torch.no_grad():
        if getattr(layer, "network_weights_backup", None) is not None:
            layer.weight.copy_(layer.network_weights_backup)
        for network in loaded_networks:
            change = network.change(layer)
            if change is not None:
                layer.weight.copy_(layer.weight + change)
    layer.network_current_names = names


def network_restore_weights_from_backup(layer: Any) -> None:
    if getattr(layer, "network_weights_backup", None) is not None:
        with torch.no_grad():
            layer.weight.copy_(layer.network_weights_backup)


def network_reset_cached_weight(layer: Any) -> None:
    layer.network_current_names = ()
    layer.network_weights_backup = None


def _functional(layer: Any, original: Any, x: Any) -> Any:
    network_restore_weights_from_backup(layer)
    network_reset_cached_weight(layer)
    y = original(layer, x)
    for network in loaded_networks:
        change = network.change(layer) if getattr(layer, "network_layer_name", None) else None
        if change is not None:
            y = y + torch.nn.functional.linear(x, change)
    return y


def _forward(layer: Any, x: Any, original: Any) -> Any:
    if getattr(shared.opts, SETTING, False):
        return _functional(layer, original, x) if loaded_networks else original(layer, x)
    network_apply_weights(layer)
    return original(layer, x)


def network_Linear_forward(self: Any, x: Any) -> Any:
    return _forward(self, x, originals.Linear_forward)  # type: ignore[union-attr]


def network_Conv2d_forward(self: Any, x: Any) -> Any:
    return _forward(self, x, originals.Conv2d_forward)  # type: ignore[union-attr]


def network_GroupNorm_forward(self: Any, x: Any) -> Any:
    return _forward(self, x, originals.GroupNorm_forward)  # type: ignore[union-attr]


def network_LayerNorm_forward(self: Any, x: Any) -> Any:
    return _forward(self, x, originals.LayerNorm_forward)  # type: ignore[union-attr]


def patch_classes() -> None:
    global originals
    originals = SimpleNamespace(**{f"{owner.__name__}_forward": owner.forward for owner in CLASSES})
    for owner in CLASSES:
        owner.forward = globals()[f"network_{owner.__name__}_forward"]  # type: ignore[method-assign]


def unpatch_classes() -> None:
    global originals
    for owner in CLASSES if originals else ():
        owner.forward = getattr(originals, f"{owner.__name__}_forward")  # type: ignore[assignment]
    originals = None
    loaded_networks.clear()
