"""Other extensions and settings of the WebUI that change what a network computes. Each is handled in one of four ways:

- its effect becomes part of the network's key (``_KEY_RULES``): hypernetworks, clip skip, upcast attention
- the network runs in PyTorch while it is on (``_REFUSAL_RULES``): ControlNet, another SD Unet, token merging, HyperTile
- it is written into the weights before each call: LoRA (lora.py)
- the trace does not see it (:func:`hooks`): sliced attention (attention.py), the LoRA extension's attributes

To support one more, add a rule.
"""

from __future__ import annotations

from collections.abc import Callable
from types import MethodType
from typing import Any

from modules import sd_hijack, sd_unet, shared

from ov_backend.engine.engine import NetworkHooks
from ov_backend.patching import unwrap
from ov_backend.webui import attention, lora
from ov_backend.webui.patch_points import HostNetwork


def hooks(network: HostNetwork) -> NetworkHooks:
    """The engine's hooks for a network of the WebUI."""
    return NetworkHooks(
        host_key=lambda: key(network),
        tracing=attention.attention_in_one_piece,
        ignore=lora.ATTRIBUTES,
        host_modules=lora.MODULES,
        traced_code=(*attention.traced_functions(), *lora.traced_functions()),
    )


def key(network: HostNetwork) -> str:
    """Every setting of the WebUI that a trace of this network depends on and that its module does not show."""
    return " ".join(part for rule in _KEY_RULES if (part := rule(network)))


def refusal(network: HostNetwork) -> str:
    """Why this network must run in PyTorch now, as the second half of a sentence, or ""."""
    return next((reason for rule in _REFUSAL_RULES if (reason := rule(network))), "")


def is_leftover(network: HostNetwork) -> bool:
    """Whether the function on the instance is the class's own: some extensions leave it there when they are done."""
    function = network.instance_function
    of_class = unwrap(getattr(type(network.owner), network.function))
    return isinstance(function, MethodType) and function.__self__ is network.owner and unwrap(function.__func__) is of_class


def _upcast_attention(network: HostNetwork) -> str:
    return f"upcast_attn={bool(getattr(shared.opts, 'upcast_attn', False))}"


def _hypernetworks(network: HostNetwork) -> str:
    return " ".join(map(_hypernetwork_key, shared.loaded_hypernetworks)) if network.switch == "unet" else ""


def _hypernetwork_key(network: Any) -> str:
    """A hypernetwork's weights are constants of the trace, so its content is named: file, state of weights, strength."""
    modules = [module for pair in network.layers.values() for module in pair]
    versions = [(id(p), p._version) for module in modules for p in module.parameters()]
    strengths = sorted({getattr(module, "multiplier", 1.0) for module in modules})
    checkpoint = getattr(network, "sd_checkpoint", None)
    return f"hypernetwork={network.name}/{checkpoint}/{strengths}/{hash(tuple(versions))}"


def _clip_skip(network: HostNetwork) -> str:
    if network.switch != "text_encoder":
        return ""
    return f"layer={getattr(network.owner, 'layer', '')}/{getattr(network.owner, 'layer_idx', '')}"


def _attention(network: HostNetwork) -> str:
    return f"attention={getattr(sd_hijack.model_hijack, 'optimization_method', '')}"


_KEY_RULES: tuple[Callable[[HostNetwork], str], ...] = (_upcast_attention, _hypernetworks, _clip_skip, _attention)


def _instance_forward(network: HostNetwork) -> str:
    """ControlNet and others put a forward of their own on the UNet."""
    return "another extension put a forward of its own on it" if network.instance_function is not None else ""


def _other_unet(network: HostNetwork) -> str:
    unet = sd_unet.current_unet
    if network.switch != "unet" or unet is None:
        return ""
    label = getattr(getattr(unet, "option", None), "label", type(unet).__name__)
    return f"the SD Unet {label!r} of another extension answers in its place"


def _lora_beside_weights(network: HostNetwork) -> str:
    if network.switch == "vae" or not lora.computed_beside_weights():
        return ""
    return "LoRAs are computed beside the weights (setting 'lora_functional'), not in them"


def _token_merging(network: HostNetwork) -> str:
    # when token merging is switched off, it empties the list of hooks
    if network.switch != "unet" or not getattr(network.module, "_tome_info", {}).get("hooks"):
        return ""
    return "token merging picks tokens by comparing them, which another rounding would decide differently"


def _hypertile(network: HostNetwork) -> str:
    # once used, HyperTile leaves its parameters on the layers
    parameters = (vars(layer).get("__webui_hypertile_params") for layer in network.module.modules())
    if not any(getattr(each, "enabled", False) for each in parameters):
        return ""
    return "HyperTile cuts attention into tiles at random, anew at every call"


_REFUSAL_RULES: tuple[Callable[[HostNetwork], str], ...] = (
    _instance_forward,
    _other_unet,
    _lora_beside_weights,
    _token_merging,
    _hypertile,
)
