"""The functions by which AUTOMATIC1111's WebUI calls its networks."""

from __future__ import annotations

from typing import Any

import torch

from ov_backend.hosts.webui.patch_points import CLIP, Arguments, PatchPoint, on_a_copy


def _of_open_clip(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
    if isinstance(kwargs.get("attn_mask"), torch.Tensor):  # a buffer of the model
        kwargs = {**kwargs, "attn_mask": kwargs["attn_mask"].detach()}
    return args, kwargs


#: Of a text encoder only the stack of layers: its token embeddings depend on data of the prompt (textual inversion).
PATCH_POINTS: tuple[PatchPoint, ...] = (
    PatchPoint("ldm.modules.diffusionmodules.openaimodel", "UNetModel", "forward", "unet"),
    PatchPoint("sgm.modules.diffusionmodules.openaimodel", "UNetModel", "forward", "unet"),
    PatchPoint("ldm.modules.diffusionmodules.model", "Encoder", "forward", "vae"),
    PatchPoint("ldm.modules.diffusionmodules.model", "Decoder", "forward", "vae"),
    PatchPoint("sgm.modules.diffusionmodules.model", "Encoder", "forward", "vae"),
    PatchPoint("sgm.modules.diffusionmodules.model", "Decoder", "forward", "vae"),
    CLIP,
    *(
        PatchPoint(
            *(f"{package}.modules.encoders.modules", name, "text_transformer_forward", "text_encoder", "model.transformer"),
            arguments=_of_open_clip,
        )
        for package, name in (
            ("ldm", "FrozenOpenCLIPEmbedder"),
            ("sgm", "FrozenOpenCLIPEmbedder"),
            ("sgm", "FrozenOpenCLIPEmbedder2"),
        )
    ),
    PatchPoint("modules.models.sd3.mmdit", "MMDiT", "forward", "unet"),
    PatchPoint("modules.models.sd3.sd3_impls", "VAEEncoder", "forward", "vae"),
    PatchPoint("modules.models.sd3.sd3_impls", "VAEDecoder", "forward", "vae"),
    PatchPoint("modules.models.sd3.other_impls", "CLIPEncoder", "forward", "text_encoder", traced=on_a_copy),
    PatchPoint("modules.models.sd3.other_impls", "T5Stack", "forward", "text_encoder"),
)
