"""SDXL with random weights in float32, and a LoRA, as files in diffusers' layout; 14 GB.

The networks are made without memory, and each has some only while it is written: of the UNet 10 GB, and with older versions of
safetensors, which copy the weights, twice as much.
Unlike :mod:`benchmarks.peers.weights` the files are for the libraries that wrote them, not for older ones.
"""

from __future__ import annotations

import argparse
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from benchmarks.peers.weights import TEXT, TINY_TEXT, TINY_VAE, TOKENIZER, VAE, fill, scale, write_lora

#: OpenCLIP bigG; the first encoder is SD1.5's, CLIP-L.
_TEXT_2: dict[str, Any] = {
    "hidden_size": 1280,
    "intermediate_size": 5120,
    "num_hidden_layers": 32,
    "num_attention_heads": 20,
    "hidden_act": "gelu",
    "projection_dim": 1280,
}
_UNET: dict[str, Any] = {
    "sample_size": 128,
    "block_out_channels": (320, 640, 1280),
    "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
    "up_block_types": ("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
    "transformer_layers_per_block": (1, 2, 10),
    "attention_head_dim": (5, 10, 20),
    "use_linear_projection": True,
    "addition_embed_type": "text_time",
    "addition_time_embed_dim": 256,
}
_VAE: dict[str, Any] = {"scaling_factor": 0.13025, "sample_size": 1024}
_TINY_UNET: dict[str, Any] = {
    "block_out_channels": (32, 64),
    "layers_per_block": 1,
    "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D"),
    "up_block_types": ("CrossAttnUpBlock2D", "UpBlock2D"),
    "transformer_layers_per_block": (1, 2),
    "attention_head_dim": (1, 2),
    "addition_time_embed_dim": 8,
}
#: Larger than any network, so that each is one file, as SDXL's own are.
_FILE_SIZE = "50GB"


@torch.no_grad()
def write_pipeline(folder: Path, tiny: bool) -> None:
    """Write the pipeline with seeded weights into ``folder``."""
    from diffusers import DDIMScheduler, StableDiffusionXLPipeline
    from transformers import CLIPTokenizer

    networks = _empty(tiny)
    tokenizer = CLIPTokenizer.from_pretrained(str(TOKENIZER), local_files_only=True)
    steps = {"beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear", "steps_offset": 1}
    scheduler = DDIMScheduler(**steps, clip_sample=False, set_alpha_to_one=False)
    parts = {"tokenizer": tokenizer, "tokenizer_2": tokenizer, "scheduler": scheduler}
    StableDiffusionXLPipeline(**networks, **parts, add_watermarker=False).save_config(str(folder))
    for name, part in parts.items():
        part.save_pretrained(str(folder / name))
    for seed, name in enumerate(list(networks)):
        network = _randomise(networks.pop(name).to_empty(device="cpu"), seed)
        if name in _SCALED:
            _SCALED[name](network)
        network.save_pretrained(str(folder / name), max_shard_size=_FILE_SIZE)
        del network


def _empty(tiny: bool) -> dict[str, Any]:
    """The networks without memory for their weights."""
    from diffusers import AutoencoderKL, UNet2DConditionModel
    from transformers import CLIPTextConfig, CLIPTextModel, CLIPTextModelWithProjection

    text: dict[str, Any] = {**TEXT, **(TINY_TEXT if tiny else {})}
    text_2: dict[str, Any] = {**TEXT, **_TEXT_2, **(TINY_TEXT if tiny else {})}
    unet = {**_UNET, **(_TINY_UNET if tiny else {})}
    unet["cross_attention_dim"] = text["hidden_size"] + text_2["hidden_size"]
    unet["projection_class_embeddings_input_dim"] = text_2["projection_dim"] + 6 * unet["addition_time_embed_dim"]
    with torch.device("meta"):
        return {
            "unet": UNet2DConditionModel(**unet),
            "vae": AutoencoderKL(**{**VAE, **_VAE, **(TINY_VAE if tiny else {})}),
            "text_encoder": CLIPTextModel(CLIPTextConfig(**text)),
            "text_encoder_2": CLIPTextModelWithProjection(CLIPTextConfig(**text_2)),
        }


def _randomise(network: Any, seed: int) -> Any:
    """Set seeded weights, several at a time, because PyTorch draws the numbers of one weight in one thread."""

    def set_one(index: int, name: str, parameter: torch.Tensor) -> None:
        with torch.no_grad():  # this is set for each thread
            fill(name, parameter, torch.Generator().manual_seed(seed * 100_000 + index))

    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        for done in [pool.submit(set_one, index, *named) for index, named in enumerate(network.named_parameters())]:
            done.result()
    return network.eval()


def _scale_unet(unet: Any) -> None:
    """Have the UNet answer with noise of deviation 1."""
    generator, config = torch.Generator().manual_seed(11), unet.config
    latents = torch.randn(1, 4, 16, 16, generator=generator)
    context = torch.randn(1, 77, config.cross_attention_dim, generator=generator)
    pooled = config.projection_class_embeddings_input_dim - 6 * config.addition_time_embed_dim
    added = {"text_embeds": torch.randn(1, pooled, generator=generator), "time_ids": torch.full((1, 6), 512.0)}
    answer = unet(latents, 500, encoder_hidden_states=context, added_cond_kwargs=added).sample
    scale(unet.conv_out, 1.0 / float(answer.std()))


def _scale_vae(vae: Any) -> None:
    """Have the VAE answer with pictures that are rarely clipped."""
    latents = torch.randn(1, 4, 16, 16, generator=torch.Generator().manual_seed(12))
    scale(vae.decoder.conv_out, 0.4 / float(vae.decode(latents / vae.config.scaling_factor).sample.std()))


_SCALED = {"unet": _scale_unet, "vae": _scale_vae}


def main() -> None:
    """Write the checkpoint and the LoRA into a folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--tiny", action="store_true")
    options = parser.parse_args()
    write_pipeline(options.folder / "first", options.tiny)
    write_lora(options.folder / "lora.safetensors", options.folder / "first" / "unet")


if __name__ == "__main__":
    main()
