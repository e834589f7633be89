"""Tiny diffusers pipelines with seeded random weights: the real classes, the real tokenizer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.helpers.networks import seeded

TOKENIZER = Path(__file__).parents[2] / "demo_checkpoint" / "fluent-sd" / "tokenizer"
WIDTH = 32


def text(seed: int, projection: bool = False, **changes: Any) -> Any:
    """A text encoder of CLIP with seeded random weights."""
    from transformers import CLIPTextConfig, CLIPTextModel, CLIPTextModelWithProjection

    config: dict[str, Any] = {
        "vocab_size": 49408,
        "hidden_size": WIDTH,
        "intermediate_size": 64,
        "num_hidden_layers": 3,
        "num_attention_heads": 2,
        "projection_dim": WIDTH,
        "bos_token_id": 49406,
        "eos_token_id": 49407,
        "pad_token_id": 49407,
    }
    model = (CLIPTextModelWithProjection if projection else CLIPTextModel)(CLIPTextConfig(**{**config, **changes}))
    return seeded(model, seed)


def _parts(**unet: Any) -> dict[str, Any]:
    from diffusers import AutoencoderKL, DDIMScheduler, UNet2DConditionModel
    from transformers import CLIPTokenizer

    config: dict[str, Any] = {
        "sample_size": 8,
        "block_out_channels": (32, 64),
        "layers_per_block": 1,
        "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"),
        "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D"),
        "cross_attention_dim": WIDTH,
        "attention_head_dim": 4,
        "norm_num_groups": 8,
    }
    vae = AutoencoderKL(
        block_out_channels=(16, 32),
        layers_per_block=1,
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        latent_channels=4,
        norm_num_groups=8,
        sample_size=16,
    )
    return {
        "unet": seeded(UNet2DConditionModel(**{**config, **unet}), 1),
        "vae": seeded(vae, 2),
        "scheduler": DDIMScheduler(prediction_type="v_prediction", clip_sample=False, beta_schedule="scaled_linear"),
        "tokenizer": CLIPTokenizer.from_pretrained(str(TOKENIZER), local_files_only=True),
    }


#: A UNet of one level and without a middle: half as much to trace, convert and compile.
SHALLOW: dict[str, Any] = {
    "block_out_channels": (32,),
    "down_block_types": ("CrossAttnDownBlock2D",),
    "mid_block_type": None,
    "up_block_types": ("CrossAttnUpBlock2D",),
}


def tiny(kind: str, shallow: bool = False) -> Any:
    """A pipeline by name: "sd1", "sd2", "img2img" or "sdxl"; pictures of 16x16 and up, VAE of f2.

    Args:
        shallow: with the UNet of ``SHALLOW``, for tests that are not about the UNet's blocks.
    """
    import diffusers

    if kind == "sdxl":
        unet = {
            "addition_embed_type": "text_time",
            "addition_time_embed_dim": 8,
            "projection_class_embeddings_input_dim": WIDTH + 6 * 8,
            "cross_attention_dim": 2 * WIDTH,
            "transformer_layers_per_block": (2,) if shallow else (2, 1),
            "use_linear_projection": True,
            "attention_head_dim": (4,) if shallow else (4, 8),
        }
        parts = _parts(**unet, **(SHALLOW if shallow else {}))
        second = {"text_encoder_2": text(4, projection=True, hidden_act="gelu"), "tokenizer_2": parts["tokenizer"]}
        pipe = diffusers.StableDiffusionXLPipeline(**parts, text_encoder=text(3), **second, add_watermarker=False)
    else:
        sd2 = {"use_linear_projection": True, "attention_head_dim": (2,) if shallow else (2, 4)} if kind == "sd2" else {}
        encoder = text(3, hidden_act="gelu") if kind == "sd2" else text(3)
        cls = diffusers.StableDiffusionImg2ImgPipeline if kind == "img2img" else diffusers.StableDiffusionPipeline
        rest = {"safety_checker": None, "feature_extractor": None, "requires_safety_checker": False}
        pipe = cls(**_parts(**sd2, **(SHALLOW if shallow else {})), text_encoder=encoder, **rest)
    pipe.set_progress_bar_config(disable=True)
    return pipe
