"""Transformers and VAEs of diffusers at small size, with random weights, as pipelines call them: name -> network and call."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Case:
    """A class of diffusers.

    Attributes:
        config: of a small network.
        call: makes the arguments of a call.
        parts: the modules that ``accelerate`` is given, by name; none stands for the network itself.
        prepare: done with the network first.
        around: the context of its calls.
    """

    config: Mapping[str, Any]
    call: Callable[[], dict[str, Any]]
    parts: tuple[str, ...] = ()
    prepare: Callable[[Any], Any] = lambda network: None
    around: Callable[[Any], Any] | None = None


def randn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape)


def _cached(network: Any) -> None:
    from diffusers import hooks

    hooks.apply_first_block_cache(network, hooks.FirstBlockCacheConfig(threshold=0.0))


STEP = torch.tensor([300])
HEADS = {"num_attention_heads": 2, "attention_head_dim": 16, "num_layers": 2}
FLUX = {**HEADS, "patch_size": 1, "in_channels": 4, "num_single_layers": 1, "joint_attention_dim": 32}
FLUX |= {"axes_dims_rope": (4, 4, 8)}


def _flux(**more: Any) -> dict[str, Any]:
    given = {"hidden_states": randn(1, 16, 4), "encoder_hidden_states": randn(1, 7, 32), "timestep": torch.tensor([0.5])}
    return {**given, "img_ids": randn(16, 3), "txt_ids": randn(7, 3), **more}


def _video(channels: int = 4, **more: Any) -> dict[str, Any]:
    given = {"hidden_states": randn(1, channels, 2, 8, 8), "encoder_hidden_states": randn(1, 7, 32), "timestep": STEP}
    return {**given, **more}


def _picture(**more: Any) -> dict[str, Any]:
    return {"hidden_states": randn(1, 4, 8, 8), "encoder_hidden_states": randn(1, 7, 32), "timestep": STEP, **more}


MASK = torch.ones(1, 7, dtype=torch.int64)
WAN = {**HEADS, "in_channels": 4, "out_channels": 4, "text_dim": 32, "freq_dim": 16, "ffn_dim": 32, "rope_max_seq_len": 32}
TRANSFORMERS: dict[str, Case] = {
    "FluxTransformer2DModel": Case({**FLUX, "pooled_projection_dim": 32}, lambda: _flux(pooled_projections=randn(1, 32))),
    "FluxTransformer2DModel, first block cache": Case(
        {**FLUX, "pooled_projection_dim": 32},
        lambda: _flux(pooled_projections=randn(1, 32), return_dict=False),
        prepare=_cached,
        around=lambda network: network.cache_context("all"),
    ),
    "ChromaTransformer2DModel": Case(
        {**FLUX, "approximator_num_channels": 8, "approximator_hidden_dim": 16, "approximator_layers": 1}, _flux
    ),
    "Flux2Transformer2DModel": Case(
        {**FLUX, "axes_dims_rope": (4, 4, 4, 4), "timestep_guidance_channels": 16},
        lambda: _flux(img_ids=randn(16, 4), txt_ids=randn(7, 4), guidance=torch.tensor([4.0])),
    ),
    "QwenImageTransformer2DModel": Case(
        {**HEADS, "in_channels": 16, "out_channels": 4, "joint_attention_dim": 32, "axes_dims_rope": (4, 6, 6)},
        lambda: {
            "hidden_states": randn(1, 16, 16),
            "encoder_hidden_states": randn(1, 7, 32),
            "encoder_hidden_states_mask": MASK.bool(),
            "timestep": torch.tensor([0.5]),
            "img_shapes": [[(1, 4, 4)]],
        },
    ),
    "ZImageTransformer2DModel": Case(
        {"in_channels": 4, "dim": 32, "n_layers": 2, "n_refiner_layers": 1, "n_heads": 2, "n_kv_heads": 2, "cap_feat_dim": 16}
        | {"axes_dims": [4, 6, 6], "axes_lens": [64, 16, 16]},
        lambda: {"x": [randn(4, 1, 8, 8)], "t": torch.tensor([0.5]), "cap_feats": [randn(7, 16)], "return_dict": False},
    ),
    "Lumina2Transformer2DModel": Case(
        {"sample_size": 8, "in_channels": 4, "hidden_size": 32, "num_layers": 1, "num_refiner_layers": 1, "cap_feat_dim": 32}
        | {"num_attention_heads": 2, "num_kv_heads": 1, "multiple_of": 8, "axes_dim_rope": (4, 6, 6), "axes_lens": (32, 16, 16)},
        lambda: _picture(encoder_attention_mask=MASK.bool(), timestep=torch.tensor([0.5])),
    ),
    "LuminaNextDiT2DModel": Case(
        {"sample_size": 8, "hidden_size": 32, "num_layers": 1, "num_attention_heads": 2, "num_kv_heads": 1, "multiple_of": 8}
        | {"cross_attention_dim": 32},
        lambda: {**_picture(encoder_mask=MASK.bool()), "image_rotary_emb": torch.view_as_complex(randn(32, 32, 8, 2))}
        | {"cross_attention_kwargs": {}},
    ),
    "HiDreamImageTransformer2DModel": Case(
        {**HEADS, "patch_size": 2, "in_channels": 4, "num_layers": 1, "num_single_layers": 1, "caption_channels": [32, 32, 32]}
        | {"text_emb_dim": 32, "axes_dims_rope": (8, 4, 4), "max_resolution": (8, 8), "llama_layers": [0, 1]},
        lambda: {
            "hidden_states": randn(1, 4, 8, 8),
            "timesteps": STEP,
            "encoder_hidden_states_t5": randn(1, 7, 32),
            "encoder_hidden_states_llama3": randn(2, 1, 7, 32),
            "pooled_embeds": randn(1, 32),
        },
    ),
    "SanaTransformer2DModel": Case(
        {**HEADS, "in_channels": 4, "out_channels": 4, "num_cross_attention_heads": 2, "cross_attention_head_dim": 16}
        | {"cross_attention_dim": 32, "caption_channels": 32, "sample_size": 8},
        _picture,
    ),
    "PixArtTransformer2DModel": Case(
        {**HEADS, "out_channels": 8, "cross_attention_dim": 32, "caption_channels": 32, "sample_size": 8},
        lambda: _picture(added_cond_kwargs={"resolution": None, "aspect_ratio": None}),
    ),
    "SD3Transformer2DModel": Case(
        {**HEADS, "sample_size": 8, "in_channels": 4, "joint_attention_dim": 32, "caption_projection_dim": 32, "out_channels": 4}
        | {"pooled_projection_dim": 32, "pos_embed_max_size": 8},
        lambda: _picture(pooled_projections=randn(1, 32)),
    ),
    "AuraFlowTransformer2DModel": Case(
        {"sample_size": 8, "num_mmdit_layers": 1, "num_single_dit_layers": 1, "attention_head_dim": 16, "num_attention_heads": 2}
        | {"joint_attention_dim": 32, "caption_projection_dim": 32, "pos_embed_max_size": 16},
        lambda: _picture(timestep=torch.tensor([0.5])),
    ),
    "HunyuanDiT2DModel": Case(
        {**HEADS, "in_channels": 4, "patch_size": 2, "sample_size": 8, "hidden_size": 32, "cross_attention_dim": 32}
        | {"cross_attention_dim_t5": 32, "text_len": 7, "text_len_t5": 7, "pooled_projection_dim": 32}
        | {"activation_fn": "gelu-approximate"},
        lambda: _picture(
            timestep=torch.tensor([300.0]),
            text_embedding_mask=MASK,
            encoder_hidden_states_t5=randn(1, 7, 32),
            text_embedding_mask_t5=MASK,
            image_meta_size=torch.tensor([[8.0, 8, 8, 8, 0, 0]]),
            style=torch.tensor([0]),
            image_rotary_emb=(randn(16, 16), randn(16, 16)),
        ),
    ),
    "CogView4Transformer2DModel": Case(
        {**HEADS, "in_channels": 4, "out_channels": 4, "text_embed_dim": 32, "time_embed_dim": 32, "condition_dim": 8}
        | {"pos_embed_max_size": 16, "sample_size": 8, "rope_axes_dim": (16, 16)},
        lambda: _picture(
            original_size=torch.tensor([[64.0, 64]]), target_size=torch.tensor([[64.0, 64]]), crop_coords=torch.tensor([[0.0, 0]])
        ),
    ),
    "CogVideoXTransformer3DModel": Case(
        {**HEADS, "in_channels": 4, "out_channels": 4, "time_embed_dim": 16, "text_embed_dim": 32, "sample_width": 8}
        | {"sample_height": 8, "sample_frames": 5, "max_text_seq_length": 7},
        lambda: {"hidden_states": randn(1, 2, 4, 8, 8), "encoder_hidden_states": randn(1, 7, 32), "timestep": STEP},
    ),
    "LTXVideoTransformer3DModel": Case(
        {**HEADS, "in_channels": 8, "out_channels": 8, "cross_attention_dim": 32, "caption_channels": 16},
        lambda: {
            "hidden_states": randn(1, 32, 8),
            "encoder_hidden_states": randn(1, 7, 16),
            "timestep": STEP,
            "encoder_attention_mask": MASK.bool(),
            "num_frames": 2,
            "height": 4,
            "width": 4,
        },
    ),
    "HunyuanVideoTransformer3DModel": Case(
        {**HEADS, "in_channels": 4, "out_channels": 4, "num_layers": 1, "num_single_layers": 1, "num_refiner_layers": 1}
        | {"text_embed_dim": 32, "pooled_projection_dim": 32, "rope_axes_dim": (4, 6, 6)},
        lambda: _video(encoder_attention_mask=MASK.bool(), pooled_projections=randn(1, 32), guidance=torch.tensor([1000.0])),
    ),
    "MochiTransformer3DModel": Case(
        {**HEADS, "pooled_projection_dim": 16, "in_channels": 4, "text_embed_dim": 32, "time_embed_dim": 8}
        | {"max_sequence_length": 7},
        lambda: _video(encoder_attention_mask=MASK.bool()),
    ),
    "AllegroTransformer3DModel": Case(
        {**HEADS, "attention_head_dim": 24, "cross_attention_dim": 48, "caption_channels": 32, "sample_frames": 2}
        | {"sample_height": 8, "sample_width": 8},
        lambda: _video(
            attention_mask=torch.ones(1, 2, 8, 8),
            encoder_attention_mask=torch.ones(1, 1, 7),
            image_rotary_emb=_allegro_angles(),
        ),
    ),
    "WanTransformer3DModel": Case(WAN, _video),
    "SkyReelsV2Transformer3DModel": Case(WAN, _video),
    "WanVACETransformer3DModel": Case(
        {**WAN, "vace_layers": [0], "vace_in_channels": 8},
        lambda: _video(control_hidden_states=randn(1, 8, 2, 8, 8)),
    ),
    "Kandinsky5Transformer3DModel": Case(
        {"in_text_dim": 32, "in_text_dim2": 16, "time_dim": 16, "model_dim": 32, "ff_dim": 32, "num_text_blocks": 1}
        | {"num_visual_blocks": 1, "axes_dims": (4, 6, 6)},
        lambda: {
            "hidden_states": randn(1, 2, 8, 8, 4),
            "encoder_hidden_states": randn(1, 7, 32),
            "timestep": STEP,
            "pooled_projections": randn(1, 16),
            "visual_rope_pos": [torch.arange(2), torch.arange(4), torch.arange(4)],
            "text_rope_pos": torch.arange(7),
        },
    ),
    "LatteTransformer3DModel": Case(
        {**HEADS, "in_channels": 4, "out_channels": 8, "num_layers": 1, "cross_attention_dim": 32, "caption_channels": 32}
        | {"sample_size": 8, "patch_size": 2, "video_length": 2, "norm_type": "ada_norm_single", "norm_elementwise_affine": False}
        | {"activation_fn": "gelu-approximate", "attention_bias": True},
        _video,
    ),
    "BriaTransformer2DModel": Case(
        {**FLUX, "pooled_projection_dim": 32, "time_theta": 10000}, lambda: _flux(pooled_projections=randn(1, 32))
    ),
    "OvisImageTransformer2DModel": Case(dict(FLUX), _flux),
    "DiTTransformer2DModel": Case(
        {**HEADS, "sample_size": 8, "norm_num_groups": 4},
        lambda: {"hidden_states": randn(1, 4, 8, 8), "timestep": STEP, "class_labels": torch.tensor([3])},
    ),
    "PriorTransformer": Case(
        {**HEADS, "embedding_dim": 16, "num_embeddings": 7, "additional_embeddings": 4},
        lambda: {
            "hidden_states": randn(1, 16),
            "timestep": STEP,
            "proj_embedding": randn(1, 16),
            "encoder_hidden_states": randn(1, 7, 16),
            "attention_mask": torch.ones(1, 7, dtype=torch.bool),
        },
    ),
    "StableAudioDiTModel": Case(
        {**HEADS, "sample_size": 8, "in_channels": 4, "num_key_value_attention_heads": 1, "out_channels": 4}
        | {"cross_attention_dim": 32, "time_proj_dim": 16, "global_states_input_dim": 32, "cross_attention_input_dim": 16},
        lambda: {
            "hidden_states": randn(1, 4, 8),
            "timestep": torch.tensor([0.5]),
            "encoder_hidden_states": randn(1, 7, 16),
            "global_hidden_states": randn(1, 1, 32),
            "rotary_embedding": (randn(9, 8), randn(9, 8)),
        },
    ),
}


def _allegro_angles() -> Any:
    angles = [(randn(8, 8), randn(8, 8)) for _ in range(3)]
    return angles, [torch.zeros(1, 32, dtype=torch.int64) for _ in range(3)]


BOTH = ("encoder", "decoder")
WAN_VAE = {"base_dim": 8, "z_dim": 4, "dim_mult": [1, 1, 1], "num_res_blocks": 1, "temperal_downsample": [False, True]}
WAN_VAE |= {"latents_mean": [0.0] * 4, "latents_std": [1.0] * 4}


def _blocks(name: str, levels: int = 2, **more: Any) -> dict[str, Any]:
    down, up = ((f"{name}{way}Block3D",) * levels for way in ("Down", "Up"))
    widths = {"block_out_channels": (8,) * levels, "layers_per_block": 1, "norm_num_groups": 4, "latent_channels": 4}
    return {"down_block_types": down, "up_block_types": up, **widths, **more}


def _clip(frames: int = 5, size: int = 16) -> Callable[[], dict[str, Any]]:
    return lambda: {"sample": randn(1, 3, frames, size, size)}


VAES: dict[str, Case] = {
    "AutoencoderKLWan": Case(WAN_VAE, _clip(), BOTH),
    "AutoencoderKLQwenImage": Case(WAN_VAE, _clip(1), BOTH),
    "AutoencoderDC": Case(
        {"latent_channels": 4, "attention_head_dim": 8, "encoder_block_out_channels": (8, 16)}
        | {"decoder_block_out_channels": (8, 16)}
        | {"encoder_layers_per_block": (1, 1), "decoder_layers_per_block": (1, 1), "encoder_qkv_multiscales": ((), (5,))}
        | {"decoder_qkv_multiscales": ((), (5,)), "encoder_block_types": ("ResBlock", "EfficientViTBlock")}
        | {"decoder_block_types": ("ResBlock", "EfficientViTBlock")},
        lambda: {"sample": randn(1, 3, 16, 16)},
        BOTH,
    ),
    "AutoencoderKLCogVideoX": Case(_blocks("CogVideoX", 4, temporal_compression_ratio=4), _clip(), BOTH),
    "AutoencoderKLCosmos": Case(
        {"latent_channels": 4, "encoder_block_out_channels": (8, 16), "decode_block_out_channels": (8, 16), "num_layers": 1}
        | {"attention_resolutions": (8,), "resolution": 16, "patch_size": 2, "spatial_compression_ratio": 4}
        | {"temporal_compression_ratio": 4},
        _clip(),
        BOTH,
    ),
    "AutoencoderKLHunyuanVideo": Case(_blocks("HunyuanVideo", 4), _clip(), BOTH),
    "AutoencoderKLLTXVideo": Case(
        {"latent_channels": 8, "block_out_channels": (8, 8), "decoder_block_out_channels": (8, 8), "layers_per_block": (1, 1, 1)}
        | {"decoder_layers_per_block": (1, 1, 1), "spatio_temporal_scaling": (True, False), "patch_size": 2, "patch_size_t": 1}
        | {"decoder_spatio_temporal_scaling": (True, False), "decoder_inject_noise": (False, False, False)}
        | {"down_block_types": ("LTXVideoDownBlock3D",) * 2, "downsample_type": ("conv", "conv")}
        | {"upsample_residual": (False, False), "upsample_factor": (1, 1)},
        _clip(9),
        BOTH,
    ),
    "AutoencoderKLMochi": Case(
        {"encoder_block_out_channels": (32, 32, 32, 32), "decoder_block_out_channels": (32, 32, 32, 32)}
        | {"latent_channels": 4, "layers_per_block": (1, 1, 1, 1, 1), "latents_mean": None, "latents_std": None},
        lambda: {"sample": randn(1, 3, 7, 16, 16)},
        BOTH,
    ),
    "AutoencoderKLTemporalDecoder": Case(
        {"block_out_channels": (32,), "latent_channels": 4},
        lambda: {"sample": randn(2, 3, 16, 16), "num_frames": 2},
        BOTH,
    ),
    "AutoencoderOobleck": Case(
        {"encoder_hidden_size": 8, "downsampling_ratios": [2, 4], "channel_multiples": [1, 2], "decoder_channels": 8}
        | {"decoder_input_channels": 4},
        lambda: {"sample": randn(1, 2, 64)},
        BOTH,
    ),
    "AsymmetricAutoencoderKL": Case({"norm_num_groups": 8}, lambda: {"sample": randn(1, 3, 16, 16)}, BOTH),
}
