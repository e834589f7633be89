"""Other extensions and settings of the WebUI that change what a network computes. Each is handled in one of six ways:

- its effect becomes part of the network's key (``_KEY_RULES``): hypernetworks, clip skip, upcast attention
- the network runs by its blocks while it is on (``_WHOLE_RULES``): FreeU; an instance's forward (ControlNet) in generation.py
- what it changes runs in PyTorch, and the blocks without it in OpenVINO (``_MODULE_RULES``): token merging, HyperTile,
  ControlNet's reference
- another network answers in its place (:func:`replaced`): another SD Unet
- it is written into the weights before each call: LoRA, also by LyCORIS (lora.py)
- the trace does not see it (:func:`hooks`): sliced attention (attention.py), the LoRA extensions' forwards and attributes

To support one more, add a rule.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from modules import sd_hijack, sd_unet, shared

from ov_backend.engine.engine import NetworkHooks
from ov_backend.hosts.webui.a1111 import attention, lora
from ov_backend.hosts.webui.patch_points import HostNetwork


def hooks(network: HostNetwork) -> NetworkHooks:
    """The engine's hooks for a network of the WebUI."""
    return NetworkHooks(
        host_key=lambda: key(network),
        tracing=lambda: _tracing(network.module),
        ignore=lora.ATTRIBUTES,
        host_modules=lora.MODULES,
        traced_code=(*attention.traced_functions(), *lora.traced_functions()),
        quantizable=network.switch == "unet",
        block_refusal=lambda module: block_refusal(network.switch, module),
    )


def hooks_of_other(module: torch.nn.Module) -> NetworkHooks:
    """The engine's hooks for a network beside the model, such as an upscaler."""
    return NetworkHooks(
        host_key=lambda: f"{_upcast_attention()} {attention.other_scales(module)} {lora.unknown_forwards()}",
        tracing=lambda: _tracing(module),
        ignore=lora.ATTRIBUTES,
        host_modules=lora.MODULES,
        traced_code=(*attention.traced_functions(), *lora.traced_functions()),
    )


@contextlib.contextmanager
def _tracing(module: torch.nn.Module) -> Iterator[None]:
    with attention.attention_in_one_piece(module), lora.layers_without_extensions():
        yield


def key(network: HostNetwork) -> str:
    """Every setting of the WebUI that a trace of this network depends on and that its module does not show."""
    return " ".join(part for rule in _KEY_RULES if (part := rule(network)))


def refusal(network: HostNetwork) -> str:
    """Why this network cannot be answered as a whole now, as the second half of a sentence, or ""."""
    of_whole = (reason for rule in _WHOLE_RULES if (reason := rule(network)))
    return next(of_whole, "") or block_refusal(network.switch, network.module)


def block_refusal(switch: str, module: torch.nn.Module) -> str:
    """Why a module of a network cannot be answered as a whole now, as the second half of a sentence, or ""."""
    return next((reason for rule in _MODULE_RULES if (reason := rule(switch, module))), "")


def _upcast_attention(_: HostNetwork | None = None) -> str:
    return f"upcast_attn={bool(getattr(shared.opts, 'upcast_attn', False))}"


def _hypernetworks(network: HostNetwork) -> str:
    return " ".join(map(_hypernetwork_key, shared.loaded_hypernetworks)) if network.switch == "unet" else ""


def _hypernetwork_key(network: Any) -> str:
    """The file and the strength; its weights are inputs of the graph like the UNet's own."""
    strengths = sorted({getattr(module, "multiplier", 1.0) for pair in network.layers.values() for module in pair})
    return f"hypernetwork={network.name}/{getattr(network, 'sd_checkpoint', None)}/{strengths}"


def _clip_skip(network: HostNetwork) -> str:
    if network.switch != "text_encoder":
        return ""
    return f"layer={getattr(network.owner, 'layer', '')}/{getattr(network.owner, 'layer_idx', '')}"


def _attention(network: HostNetwork) -> str:
    """Its variant, and what of it attention in one piece leaves out."""
    variant = f"attention={getattr(sd_hijack.model_hijack, 'optimization_method', '')}"
    return f"{variant} {attention.other_scales(network.module)}".strip()


def _layers(network: HostNetwork) -> str:
    return lora.unknown_forwards()


_KEY_RULES: tuple[Callable[[HostNetwork], str], ...] = (_upcast_attention, _hypernetworks, _clip_skip, _attention, _layers)


def replaced(network: HostNetwork) -> str:
    """Why PyTorch alone must run this network's forward, as the second half of a sentence, or ""."""
    unet = sd_unet.current_unet
    if network.switch != "unet" or unet is None:
        return ""
    label = getattr(getattr(unet, "option", None), "label", type(unet).__name__)
    return f"the SD Unet {label!r} of another extension answers in its place"


def _free_u(network: HostNetwork) -> str:
    """The extension FreeU replaces the function that joins skip connections; what it does depends on the step."""
    state = getattr(sys.modules.get("lib_free_u.global_state"), "instance", None)
    if network.switch != "unet" or not getattr(state, "enable", False):
        return ""
    return "FreeU changes what stands between its blocks, in each step in another way"


def _lora_beside_weights(switch: str, module: torch.nn.Module) -> str:
    if switch == "vae" or not lora.computed_beside_weights(module):
        return ""
    return "LoRAs are computed beside the weights (setting 'lora_functional' or 'lyco_functional'), not in them"


def _token_merging(switch: str, module: torch.nn.Module) -> str:
    # when token merging is switched off, it empties the list of hooks
    if switch != "unet" or not any(vars(each).get("_tome_info", {}).get("hooks") for each in module.modules()):
        return ""
    return "token merging picks tokens by comparing them, which another rounding would decide differently"


def _hypertile(_: str, module: torch.nn.Module) -> str:
    # once used, HyperTile leaves its parameters on the layers
    parameters = (vars(layer).get("__webui_hypertile_params") for layer in module.modules())
    if not any(getattr(each, "enabled", False) for each in parameters):
        return ""
    return "HyperTile cuts attention into tiles at random, anew at every call"


def _reference_only(switch: str, module: torch.nn.Module) -> str:
    """ControlNet's preprocessors "reference" replace methods of blocks, and leave them there until it is used in another way."""
    if switch != "unet" or not any(map(_replaced_by_reference, module.modules())):
        return ""
    return "ControlNet's reference keeps values of one call for the next in its blocks"


def _replaced_by_reference(module: torch.nn.Module) -> bool:
    methods = (getattr(vars(module).get(name), "__func__", None) for name in ("forward", "_forward"))
    return any(getattr(method, "__name__", "") in _OF_REFERENCE for method in methods if method is not None)


_OF_REFERENCE = frozenset({"hacked_basic_transformer_inner_forward", "hacked_group_norm_forward"})


_WHOLE_RULES: tuple[Callable[[HostNetwork], str], ...] = (_free_u,)
_MODULE_RULES: tuple[Callable[[str, torch.nn.Module], str], ...] = (
    _lora_beside_weights,
    _token_merging,
    _hypertile,
    _reference_only,
)
