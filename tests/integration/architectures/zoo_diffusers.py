"""diffusers' networks at small size, with random weights; the others are in ``zoo.py``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tests.integration.architectures.zoo import ZOO, Made, image


def _diffusers(name: str) -> Callable[[Callable[[Any], Made]], None]:
    def keep(make: Callable[[Any], Made]) -> None:
        def made() -> Made:
            import diffusers

            return make(diffusers)

        ZOO[f"diffusers/{name}"] = made

    return keep


_UNET = {
    "sample_size": 8,
    "block_out_channels": (32, 64),
    "layers_per_block": 1,
    "attention_head_dim": 8,
    "norm_num_groups": 8,
    "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"),
    "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D"),
    "cross_attention_dim": 32,
}


def _latents(channels: int = 4, size: int = 8) -> torch.Tensor:
    return torch.randn(2, channels, size, size)


def _conditioned() -> dict[str, torch.Tensor]:
    """What a network that denoises by a text is called with."""
    return {"sample": _latents(), "timestep": torch.tensor([3, 7]), "encoder_hidden_states": torch.randn(2, 7, 32)}


@_diffusers("unet_sd15")
def _unet(d: Any) -> Made:
    return d.UNet2DConditionModel(**_UNET), {**_conditioned(), "return_dict": False}


@_diffusers("unet_sd2_linear_projection")
def _unet2(d: Any) -> Made:
    return d.UNet2DConditionModel(**{**_UNET, "use_linear_projection": True, "attention_head_dim": (4, 8)}), _conditioned()


@_diffusers("unet_sdxl")
def _unet_xl(d: Any) -> Made:
    added = {"addition_embed_type": "text_time", "addition_time_embed_dim": 8, "projection_class_embeddings_input_dim": 80}
    conditions = {"text_embeds": torch.randn(2, 32), "time_ids": torch.randint(0, 9, (2, 6)).float()}
    blocks = {"transformer_layers_per_block": (1, 2), "use_linear_projection": True}
    call = {**_conditioned(), "added_cond_kwargs": conditions, "return_dict": False}
    return d.UNet2DConditionModel(**{**_UNET, **added, **blocks}), call


@_diffusers("controlnet")
def _controlnet(d: Any) -> Made:
    given = {name: value for name, value in _UNET.items() if name not in ("sample_size", "up_block_types")}
    net = d.ControlNetModel(**given, conditioning_embedding_out_channels=(16, 32))
    return net, {**_conditioned(), "controlnet_cond": torch.rand(2, 3, 16, 16), "return_dict": False}


@_diffusers("unet_unconditional")
def _unet_plain(d: Any) -> Made:
    given = {
        "sample_size": 8,
        "block_out_channels": (32, 64),
        "layers_per_block": 1,
        "norm_num_groups": 8,
        "attention_head_dim": 8,
    }
    blocks = {"down_block_types": ("DownBlock2D", "AttnDownBlock2D"), "up_block_types": ("AttnUpBlock2D", "UpBlock2D")}
    return d.UNet2DModel(**given, **blocks), {"sample": _latents(3), "timestep": torch.tensor([3, 7]), "return_dict": False}


def _vae(d: Any) -> torch.nn.Module:
    blocks = {"down_block_types": ("DownEncoderBlock2D",) * 2, "up_block_types": ("UpDecoderBlock2D",) * 2}
    return d.AutoencoderKL(block_out_channels=(16, 32), norm_num_groups=8, latent_channels=4, **blocks)


@_diffusers("autoencoder_kl")
def _kl(d: Any) -> Made:
    return _vae(d), {"sample": image(16), "return_dict": False}


@_diffusers("autoencoder_kl_decoder")
def _kl_decoder(d: Any) -> Made:
    return _vae(d).decoder, {"sample": _latents()}


@_diffusers("autoencoder_tiny")
def _tiny(d: Any) -> Made:
    widths = {"encoder_block_out_channels": (16, 16), "decoder_block_out_channels": (16, 16)}
    blocks = {"num_encoder_blocks": (1, 1), "num_decoder_blocks": (1, 1)}
    return d.AutoencoderTiny(**widths, **blocks, latent_channels=4), {"sample": image(16), "return_dict": False}


@_diffusers("transformer_sd3")
def _sd3(d: Any) -> Made:
    net = d.SD3Transformer2DModel(
        sample_size=8,
        patch_size=2,
        in_channels=4,
        out_channels=4,
        num_layers=2,
        attention_head_dim=8,
        num_attention_heads=4,
        joint_attention_dim=32,
        caption_projection_dim=32,
        pooled_projection_dim=16,
        pos_embed_max_size=8,
    )
    call = {"hidden_states": _latents(), "encoder_hidden_states": torch.randn(2, 7, 32), "pooled_projections": torch.randn(2, 16)}
    return net, {**call, "timestep": torch.tensor([3, 7]), "return_dict": False}


@_diffusers("transformer_flux")
def _flux(d: Any) -> Made:
    net = d.FluxTransformer2DModel(
        patch_size=1,
        in_channels=4,
        num_layers=1,
        num_single_layers=1,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=32,
        pooled_projection_dim=32,
        axes_dims_rope=(4, 4, 8),
    )
    call = {
        "hidden_states": torch.randn(1, 16, 4),
        "encoder_hidden_states": torch.randn(1, 7, 32),
        "timestep": torch.tensor([1.0]),
    }
    batch = (1,) if d.__version__.startswith("0.30.") else ()  # positions had a batch of their own at first
    places = {"img_ids": torch.randn(*batch, 16, 3), "txt_ids": torch.randn(*batch, 7, 3)}
    return net, {**call, **places, "pooled_projections": torch.randn(1, 32), "return_dict": False}


@_diffusers("transformer_dit")
def _dit(d: Any) -> Made:
    net = d.Transformer2DModel(
        num_attention_heads=2,
        attention_head_dim=16,
        in_channels=4,
        out_channels=4,
        sample_size=8,
        patch_size=2,
        num_layers=1,
        norm_type="ada_norm_zero",
        num_embeds_ada_norm=1000,
        norm_elementwise_affine=False,
        activation_fn="gelu-approximate",
    )
    call = {"hidden_states": _latents(), "timestep": torch.tensor([3, 7]), "class_labels": torch.tensor([1, 2])}
    return net, {**call, "return_dict": False}


@_diffusers("vq_model")
def _vq(d: Any) -> Made:
    blocks = {"down_block_types": ("DownEncoderBlock2D",), "up_block_types": ("UpDecoderBlock2D",)}
    return d.VQModel(block_out_channels=(32,), latent_channels=3, norm_num_groups=8, num_vq_embeddings=16, **blocks), {
        "sample": image(16),
        "return_dict": False,
    }
