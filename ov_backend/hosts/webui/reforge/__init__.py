"""Stable Diffusion WebUI reForge."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from modules import scripts, sd_hijack, sd_samplers_common

from ov_backend.engine.engine import NetworkHooks
from ov_backend.hosts.webui import unet_call
from ov_backend.hosts.webui.patch_points import CLIP, HostNetwork, PatchPoint, hidden_states_or_none, on_a_copy
from ov_backend.hosts.webui.protocol import WebUI
from ov_backend.hosts.webui.reforge import attention

_VAE = "ldm_patched.ldm.modules.diffusionmodules.model"


class ReForge(WebUI):
    """A1111's WebUI around the networks and samplers of ComfyUI; LoRAs are in the weights before a network is called."""

    name = "reForge"
    interruption = sd_samplers_common.InterruptedException
    patch_points = (
        PatchPoint(
            *("ldm_patched.ldm.modules.diffusionmodules.openaimodel", "UNetModel", "_forward", "unet"),
            arguments=unet_call.arguments,
            traced=unet_call.with_fresh_dicts,
        ),
        PatchPoint(_VAE, "Encoder", "forward", "vae"),
        PatchPoint(_VAE, "Decoder", "forward", "vae"),
        CLIP,
        PatchPoint(
            *("ldm_patched.modules.clip_model", "CLIPEncoder", "forward", "text_encoder"),
            arguments=hidden_states_or_none,
            traced=on_a_copy,  # its layers add to their input in place
        ),
    )

    def hooks_of_other(self, module: torch.nn.Module) -> NetworkHooks:
        """A trace needs attention in one piece; everything else stands on modules, where it is looked at."""
        return NetworkHooks(
            tracing=attention.in_one_piece,
            traced_code=attention.traced_functions(),
            block_refusal=_block_refusal,
            block_arguments=unet_call.block_arguments,
            block_traced=unet_call.block_traced,
        )

    def refusal(self, network: HostNetwork, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] = {}) -> str:
        """Functions of extensions in the call of a UNet, and weights that are computed in the layers' forwards."""
        names = unet_call.functions_in(args, kwargs) if network.switch == "unet" else ()
        if names:
            return f"extensions put functions between and into its layers ({', '.join(sorted(names))})"
        return _block_refusal(network.module)

    def runner(self) -> Any:
        """None of them; reForge's samplers call a runner without asking whether there is one."""
        return scripts.ScriptRunner()

    def tokens(self, prompt: str) -> int:
        """As the page's counter shows it."""
        return int(sd_hijack.model_hijack.get_prompt_lengths(prompt)[1])


def _block_refusal(module: torch.nn.Module) -> str:
    """LoRAs that did not fit into the memory of the device are added at each call of a layer."""
    if not any(vars(layer).get("weight_function") or vars(layer).get("bias_function") for layer in module.modules()):
        return ""
    return "LoRAs are added to its weights at each call of a layer"


HOST = ReForge()
