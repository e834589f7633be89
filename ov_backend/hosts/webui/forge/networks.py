"""The functions by which Forge calls its networks."""

from __future__ import annotations

from ov_backend.hosts.webui import unet_call
from ov_backend.hosts.webui.patch_points import PatchPoint, on_a_copy


def _denoiser(module: str, name: str) -> PatchPoint:
    return PatchPoint(
        *(f"backend.nn.{module}", name, "forward", "unet"), arguments=unet_call.arguments, traced=unet_call.with_fresh_dicts
    )


#: Of a text encoder only the stack of layers: its token embeddings depend on data of the prompt (textual inversion).
PATCH_POINTS: tuple[PatchPoint, ...] = (
    _denoiser("unet", "IntegratedUNet2DConditionModel"),
    _denoiser("flux", "IntegratedFluxTransformer2DModel"),
    _denoiser("chroma", "IntegratedChromaTransformer2DModel"),
    _denoiser("mmditx", "MMDiTX"),
    PatchPoint("backend.nn.vae", "Encoder", "forward", "vae"),
    PatchPoint("backend.nn.vae", "Decoder", "forward", "vae"),
    # since transformers 5 the caller collects hidden states, and would get none from a compiled stack
    PatchPoint("transformers.models.clip.modeling_clip", "CLIPEncoder", "forward", "text_encoder", needs="output_hidden_states"),
    # its layers add to their input in place
    PatchPoint("backend.nn.t5", "T5Stack", "forward", "text_encoder", traced=on_a_copy),
)
