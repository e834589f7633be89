"""Tiny instances of the real networks: the original ldm classes, with seeded random weights that do not cancel out."""

from __future__ import annotations

from typing import Any

import torch

CONTEXT = 32


def seeded(module: torch.nn.Module, seed: int = 0) -> torch.nn.Module:
    """Give every weight seeded values: fan-in scaled matrices, norms near one, and no layer left at zero."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, tensor in module.state_dict().items():
            if not tensor.is_floating_point():
                continue
            values = torch.randn(tensor.shape, generator=generator, dtype=torch.float32)
            if tensor.dim() > 1:
                values /= (tensor[0].numel()) ** 0.5
            elif name.endswith("weight"):
                values = 1 + 0.1 * values
            else:
                values *= 0.05
            tensor.copy_(values)
    return module.eval()


def unet(seed: int = 0, in_channels: int = 4, **changes: Any) -> torch.nn.Module:
    """ldm's UNetModel: latents [B, 4, H, W], timesteps [B], context [B, T, 32]."""
    from ldm.modules.diffusionmodules.openaimodel import UNetModel

    config: dict[str, Any] = {
        "image_size": 32,
        "in_channels": in_channels,
        "out_channels": 4,
        "model_channels": 32,
        "attention_resolutions": [2, 1],
        "num_res_blocks": 1,
        "channel_mult": [1, 2],
        "num_heads": 4,
        "use_spatial_transformer": True,
        "transformer_depth": 1,
        "context_dim": CONTEXT,
        "use_checkpoint": True,
        "legacy": False,
    }
    return seeded(UNetModel(**{**config, **changes}), seed)


def _vae_config() -> dict[str, Any]:
    return {
        "double_z": True,
        "z_channels": 4,
        "resolution": 64,
        "in_channels": 3,
        "out_ch": 3,
        "ch": 32,
        "ch_mult": [1, 2],
        "num_res_blocks": 1,
        "attn_resolutions": [],
        "dropout": 0.0,
    }


def vae_encoder(seed: int = 0, **changes: Any) -> torch.nn.Module:
    """ldm's Encoder: images [B, 3, H, W] -> moments [B, 8, H/2, W/2]."""
    from ldm.modules.diffusionmodules.model import Encoder

    return seeded(Encoder(**{**_vae_config(), **changes}), seed)


def vae_decoder(seed: int = 0, **changes: Any) -> torch.nn.Module:
    """ldm's Decoder: latents [B, 4, H, W] -> images [B, 3, 2H, 2W]."""
    from ldm.modules.diffusionmodules.model import Decoder

    return seeded(Decoder(**{**_vae_config(), **changes}), seed)


def text_encoder(seed: int = 0, layers: int = 3) -> torch.nn.Module:
    """transformers' CLIPTextModel: input_ids [B, 77] -> hidden states [B, 77, 32]."""
    from transformers import CLIPTextConfig, CLIPTextModel

    config = CLIPTextConfig(
        vocab_size=1000,
        hidden_size=CONTEXT,
        intermediate_size=64,
        num_hidden_layers=layers,
        num_attention_heads=4,
        max_position_embeddings=77,
        bos_token_id=998,
        eos_token_id=999,
        pad_token_id=999,
    )
    return seeded(CLIPTextModel(config), seed)


def latents(batch: int = 2, height: int = 16, width: int = 16, channels: int = 4, seed: int = 1) -> torch.Tensor:
    """Seeded noise [B, C, H, W]."""
    return torch.randn(batch, channels, height, width, generator=torch.Generator().manual_seed(seed))


def context(batch: int = 2, tokens: int = 77, seed: int = 2) -> torch.Tensor:
    """Seeded text features [B, T, 32]."""
    return torch.randn(batch, tokens, CONTEXT, generator=torch.Generator().manual_seed(seed))


def relative_error(got: torch.Tensor, expected: torch.Tensor) -> float:
    """‖got - expected‖ / ‖expected‖; NaN where either is not finite."""
    return float((got.double() - expected.double()).norm() / expected.double().norm())
