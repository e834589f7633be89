"""Writes a small checkpoint of seeded random weights in the original key layout, for trials without a trained one.

The network predicts velocity (v, https://arxiv.org/abs/2202.00512). A sampling step then rotates latents and prediction into
each other, so that the latents stay bounded although the network is not trained.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from ov_backend.checkpoint import keys
from ov_backend.checkpoint.header import CLIP, UNET, VAE

CONTEXT = 64
_UNET: dict[str, Any] = {
    "sample_size": 32,
    "block_out_channels": [64, 128, 128],
    "layers_per_block": 2,
    "down_block_types": ["CrossAttnDownBlock2D", "CrossAttnDownBlock2D", "DownBlock2D"],
    "up_block_types": ["UpBlock2D", "CrossAttnUpBlock2D", "CrossAttnUpBlock2D"],
    "cross_attention_dim": CONTEXT,
    "attention_head_dim": 4,
}
_VAE: dict[str, Any] = {
    "block_out_channels": [32, 64, 64, 128],
    "layers_per_block": 1,
    "down_block_types": ["DownEncoderBlock2D"] * 4,
    "up_block_types": ["UpDecoderBlock2D"] * 4,
    "latent_channels": 4,
}
_TEXT: dict[str, Any] = {
    "vocab_size": 49408,
    "hidden_size": CONTEXT,
    "intermediate_size": 4 * CONTEXT,
    "num_hidden_layers": 4,
    "num_attention_heads": 1,
    "max_position_embeddings": 77,
}
#: The .yaml beside the file (JSON is YAML), with the keys of the original configuration.
_YAML: dict[str, Any] = {
    "model": {
        "target": "ldm.models.diffusion.ddpm.LatentDiffusion",
        "params": {
            "parameterization": "v",
            "linear_start": 0.00085,
            "linear_end": 0.012,
            "timesteps": 1000,
            "image_size": 32,
            "channels": 4,
            "scale_factor": 1.0,
            "unet_config": {
                "target": "ldm.modules.diffusionmodules.openaimodel.UNetModel",
                "params": {"image_size": 32, "model_channels": 64, "num_heads": 4, "context_dim": CONTEXT},
            },
        },
    }
}


@torch.no_grad()
def write_random_checkpoint(
    path: Path,
    seed: int = 0,
    unet: Mapping[str, Any] | None = None,
    vae: Mapping[str, Any] | None = None,
    text: Mapping[str, Any] | None = None,
) -> Path:
    """Write a checkpoint of seeded random weights, float16, and its .yaml; the file appears completely or not at all.

    ``unet``, ``vae`` and ``text`` are changes to the configurations, with diffusers' keys; when the file is loaded, channels are
    inferred from the shapes, and heads come from the .yaml. Returns ``path``.
    """
    from safetensors.torch import save_file

    generator = torch.Generator().manual_seed(seed)
    tensors = _tensors({**_UNET, **(unet or {})}, {**_VAE, **(vae or {})}, {**_TEXT, **(text or {})}, generator)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.with_suffix(".yaml").write_text(json.dumps(_YAML, indent=2), encoding="utf-8")
    part = path.with_suffix(".part")
    save_file({name: tensor.half().contiguous() for name, tensor in tensors.items()}, str(part), {"format": "pt"})
    part.replace(path)
    return path


def _tensors(
    unet_config: Mapping[str, Any], vae_config: Mapping[str, Any], text_config: Mapping[str, Any], generator: torch.Generator
) -> dict[str, torch.Tensor]:
    from diffusers import AutoencoderKL, UNet2DConditionModel
    from transformers import CLIPTextConfig, CLIPTextModel

    unet = _randomise(UNet2DConditionModel(**unet_config), generator)
    vae = _randomise(AutoencoderKL(**vae_config), generator)
    text = _randomise(CLIPTextModel(CLIPTextConfig(**text_config)), generator)
    latents = torch.randn(1, 4, 32, 32, generator=generator)
    context = torch.randn(1, 77, unet_config["cross_attention_dim"], generator=generator)
    _scale_to(unet.conv_out, 1.0, lambda: unet(latents, 500, encoder_hidden_states=context).sample)
    _scale_to(vae.decoder.conv_out, 0.5, lambda: vae.decode(latents).sample)
    _scale_to(vae.quant_conv, 1.0, lambda: vae.encode(torch.randn(1, 3, 64, 64, generator=generator)).latent_dist.mean)
    unet_names = keys.unet_names(unet_config)
    vae_names = keys.vae_names(len(vae_config["block_out_channels"]))
    return {
        **{UNET + unet_names(name): value for name, value in unet.named_parameters()},
        **{VAE + vae_names(name): _as_convolution(name, value) for name, value in vae.named_parameters()},
        **{CLIP + keys.clip_name(name): value for name, value in text.named_parameters()},
    }


def _randomise(network: Any, generator: torch.Generator) -> Any:
    """Set weights that depend on seed and shapes only, and not on a library's initialisation."""
    for name, parameter in network.named_parameters():
        values = torch.randn(parameter.shape, generator=generator)
        if parameter.dim() == 1:
            parameter.copy_(1 + 0.05 * values if name.endswith("weight") else 0.05 * values)
        else:
            scale = 0.5 if "embedding" in name and "time" not in name else parameter[0].numel() ** -0.5
            parameter.copy_(scale * values)
    return network.eval()


def _scale_to(layer: Any, deviation: float, run: Any) -> None:
    """Scale a last layer so that its output, the result of ``run``, has the given standard deviation."""
    factor = deviation / float(run().std())
    layer.weight.mul_(factor)
    layer.bias.mul_(factor)


def _as_convolution(name: str, value: torch.Tensor) -> torch.Tensor:
    """A weight in the shape of the original VAE, whose attention consists of 1x1 convolutions."""
    return value[:, :, None, None] if "attentions" in name and value.dim() == 2 else value
