"""Forge: lllyasviel's stable-diffusion-webui-forge of 2024 and 2025."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from inspect import signature
from typing import Any

import torch
from modules import sd_models, sd_samplers_common

from ov_backend.engine.engine import NetworkHooks
from ov_backend.hosts.webui import unet_call
from ov_backend.hosts.webui.forge import attention
from ov_backend.hosts.webui.forge.networks import PATCH_POINTS
from ov_backend.hosts.webui.patch_points import HostNetwork
from ov_backend.hosts.webui.protocol import WebUI

#: What weights bear that are stored in few bits: those of GGUF files, and those of bitsandbytes (nf4 and fp4).
_OF_FEW_BITS = ("gguf_cls", "bnb_quantized")


class Forge(WebUI):
    """Forge, which has one model at a time; its networks stand in ``forge_objects``."""

    name = "Forge"
    patch_points = PATCH_POINTS
    interruption = sd_samplers_common.InterruptedException

    def models(self) -> list[Any]:
        """The one in use; another takes its place."""
        model = self.model()
        return [] if model is None else [model]

    def model(self) -> Any:
        """The model in use; before the first is loaded, Forge has an object there that is none."""
        model = sd_models.model_data.sd_model
        return model if hasattr(model, "forge_objects") else None

    def owners(self, model: Any) -> Iterator[tuple[str, Any]]:
        """Those in ``forge_objects``."""
        objects = model.forge_objects
        yield "unet", objects.unet.model.diffusion_model
        yield "vae_encode", getattr(objects.vae.first_stage_model, "encoder", None)
        yield "vae_decode", getattr(objects.vae.first_stage_model, "decoder", None)
        text = getattr(objects.clip, "cond_stage_model", None)
        yield from (("text_encoder", module) for module in (text.modules() if text is not None else ()))

    def parts(self, model: Any) -> Iterator[torch.nn.Module]:
        """Those of the three networks, which stand beside each other."""
        objects = model.forge_objects
        for root in (objects.unet.model, objects.vae.first_stage_model, objects.clip.cond_stage_model):
            yield from root.modules()

    def hooks_of_other(self, module: torch.nn.Module) -> NetworkHooks:
        """A trace needs attention in one piece; everything else stands on modules, where it is looked at."""
        return NetworkHooks(
            tracing=attention.in_one_piece,
            traced_code=attention.traced_functions(),
            block_refusal=_block_refusal,
            block_arguments=unet_call.block_arguments,
            block_traced=unet_call.block_traced,
        )

    def update_weights(self, module: torch.nn.Module) -> None:
        """Merge the LoRAs that are set, as Forge does when it loads a network for use; nothing where that is done."""
        objects = getattr(self.model(), "forge_objects", None)
        if objects is not None:
            for patcher in (objects.unet, objects.clip.patcher):
                patcher.refresh_loras()

    def refusal(self, network: HostNetwork, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] = {}) -> str:
        """Functions of extensions in the call of a denoiser, and weights that are computed in the layers' forwards."""
        if network.switch == "unet" and "transformer_options" in signature(network.class_function).parameters:
            if not args:  # before a call
                kwargs = self.model().forge_objects.unet.model_options
            if names := unet_call.functions_in(args, kwargs):
                return f"extensions put functions between and into its layers ({', '.join(sorted(names))})"
        return _block_refusal(network.module)

    def tokens(self, prompt: str) -> int:
        """As the page's counter shows it."""
        return int(self.model().get_prompt_lengths_on_ui(prompt)[1])


def _block_refusal(module: torch.nn.Module) -> str:
    """Weights that a layer computes anew at each call: from few bits, or with LoRAs that are not merged."""
    for layer in module.modules():
        if vars(layer).get("forge_online_loras"):
            return "LoRAs are added to its weights at each call of a layer"
        for weight in layer.parameters(recurse=False):
            if any(hasattr(weight, name) for name in _OF_FEW_BITS):
                return f"its weights are stored in few bits ({type(weight).__name__}), and computed from these at each call"
    return ""


HOST = Forge()
