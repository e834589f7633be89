"""What changes a network's result from outside its code and weights: it becomes part of the key, or a reason to leave
the network to PyTorch."""

from __future__ import annotations

from typing import Any

from modules import sd_hijack, sd_unet, shared

from ov_backend.webui import lora
from ov_backend.webui.patch_points import Found


def key(found: Found) -> str:
    """Everything of the host that a trace of this network depends on and that its module does not show."""
    parts = [f"upcast_attn={bool(getattr(shared.opts, 'upcast_attn', False))}"]
    if found.kind == "unet":
        parts += [_hypernetwork(each) for each in shared.loaded_hypernetworks]
    if found.kind == "text_encoder":
        parts.append(f"layer={getattr(found.owner, 'layer', '')}/{getattr(found.owner, 'layer_idx', '')}")
    parts.append(f"attention={getattr(sd_hijack.model_hijack, 'optimization_method', '')}")
    return " ".join(parts)


def _hypernetwork(network: Any) -> str:
    """A hypernetwork's weights are constants of the trace, so its content is named: file, state of weights, strength."""
    modules = [module for pair in network.layers.values() for module in pair]
    versions = [(id(p), p._version) for module in modules for p in module.parameters()]
    strengths = sorted({getattr(module, "multiplier", 1.0) for module in modules})
    return f"hypernetwork={network.name}/{getattr(network, 'sd_checkpoint', None)}/{strengths}/{hash(tuple(versions))}"


def refusal(found: Found) -> str:
    """Why this network must run in PyTorch now, as the middle of a sentence, or ""."""
    if found.kind == "unet" and sd_unet.current_unet is not None:
        label = getattr(getattr(sd_unet.current_unet, "option", None), "label", type(sd_unet.current_unet).__name__)
        return f"the SD Unet {label!r} of another extension answers in its place"
    if found.kind in ("unet", "text_encoder") and lora.computed_beside_weights():
        return "LoRAs are computed beside the weights (setting 'lora_functional'), not in them"
    if found.kind == "unet" and getattr(found.module, "_tome_info", {}).get("hooks"):  # emptied when it is taken off again
        return "token merging picks tokens by comparing them, which another rounding would decide differently"
    if any(getattr(params, "enabled", False) for params in _tiled(found)):
        return "HyperTile cuts attention into tiles at random, anew at every call"
    return ""


def _tiled(found: Found) -> list[Any]:
    """HyperTile's parameters on the layers of a network; once used, they stay there."""
    layers = found.module.modules()
    return [params for layer in layers if (params := vars(layer).get("__webui_hypertile_params")) is not None]
