"""Writes the demo checkpoint: one fp16 file in the original key layout, and the configuration folder beside it."""

from __future__ import annotations

import argparse
import json
import logging
import shutil
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from . import networks, shards, state
from .bpe import Tokenizer
from .paths import CHECKPOINT_DIR, COMPANION_DIR, TOKENIZER_DIR

log = logging.getLogger(__name__)
NAME = "fluent-sd.safetensors"


def gather(folder: Path, seed: int) -> tuple[dict[str, Tensor], dict]:
    """All weights under Stable Diffusion 1's key names, float16, and the facts of the training.

    Raises:
        FileNotFoundError: a network has not been trained yet.
    """
    vae, unet = shards.load(folder, "vae"), shards.load(folder, "unet")
    if vae is None or unet is None:
        raise FileNotFoundError(f"{folder} must hold the states vae and unet; train them first")
    average = {k.removeprefix("average."): v for k, v in unet[0].items() if k.startswith("average.")}
    rows = average["rows"].long()
    average = state.unpacked(average, state.initial_table(seed))
    average[state.TABLE] = without_unseen_tokens(average[state.TABLE], rows)
    tensors = {f"model.diffusion_model.{k.removeprefix('unet.')}": v for k, v in average.items() if k.startswith("unet.")}
    tensors |= {f"first_stage_model.{k}": v for k, v in vae[0].items()}
    text = "cond_stage_model.transformer.text_model."
    tensors |= {f"{text}{k.removeprefix('text.text_model.')}": v for k, v in average.items() if k.startswith("text.")}
    tensors = {k: v.half().contiguous() for k, v in tensors.items()}
    tensors[f"{text}embeddings.position_ids"] = torch.arange(77).unsqueeze(0)
    return tensors, {"vae": vae[1], "unet": unet[1]}


def without_unseen_tokens(table: Tensor, trained: Tensor) -> Tensor:
    """Give every token that is not in the training captions the vector of the comma.

    With their random initial vectors, such words would disturb the rest of a prompt; as a comma they have little effect.
    """
    comma = Tokenizer(TOKENIZER_DIR).word(",")[0]
    unseen = torch.ones(len(table), dtype=torch.bool)
    unseen[trained] = False
    return torch.where(unseen[:, None], table[comma], table)


def diffusers_configs() -> dict[str, dict]:
    """The configurations of diffusers and transformers, by file name in the companion folder."""
    params = networks.config()
    unet, vae = params["unet_config"]["params"], params["first_stage_config"]["params"]["ddconfig"]
    widths = [unet["model_channels"] * factor for factor in unet["channel_mult"]]
    attends = [2**level in unet["attention_resolutions"] for level in range(len(widths))]
    down = ["CrossAttnDownBlock2D" if yes else "DownBlock2D" for yes in attends]
    up = ["CrossAttnUpBlock2D" if yes else "UpBlock2D" for yes in reversed(attends)]
    return {
        "unet/config.json": {
            "_class_name": "UNet2DConditionModel", "sample_size": unet["image_size"], "in_channels": unet["in_channels"],
            "out_channels": unet["out_channels"], "down_block_types": down, "up_block_types": up, "block_out_channels": widths,
            "layers_per_block": unet["num_res_blocks"], "cross_attention_dim": unet["context_dim"],
            "attention_head_dim": unet["num_heads"],
        },
        "vae/config.json": {
            "_class_name": "AutoencoderKL", "sample_size": vae["resolution"], "in_channels": 3, "out_channels": 3,
            "latent_channels": vae["z_channels"], "layers_per_block": vae["num_res_blocks"],
            "block_out_channels": [vae["ch"] * factor for factor in vae["ch_mult"]],
            "down_block_types": ["DownEncoderBlock2D"] * len(vae["ch_mult"]),
            "up_block_types": ["UpDecoderBlock2D"] * len(vae["ch_mult"]), "scaling_factor": params["scale_factor"],
        },
        "scheduler/scheduler_config.json": {
            "_class_name": "DDIMScheduler", "beta_start": params["linear_start"], "beta_end": params["linear_end"],
            "beta_schedule": "scaled_linear", "num_train_timesteps": params["timesteps"], "clip_sample": False,
            "set_alpha_to_one": False, "steps_offset": 1, "prediction_type": "epsilon",
        },
        "text_encoder/config.json": json.loads((TOKENIZER_DIR / "config.json").read_text()),
        "model_index.json": {
            "_class_name": "StableDiffusionPipeline", "feature_extractor": [None, None], "image_encoder": [None, None],
            "requires_safety_checker": False, "safety_checker": [None, None],
            "scheduler": ["diffusers", "DDIMScheduler"], "text_encoder": ["transformers", "CLIPTextModel"],
            "tokenizer": ["transformers", "CLIPTokenizer"], "unet": ["diffusers", "UNet2DConditionModel"],
            "vae": ["diffusers", "AutoencoderKL"],
        },
    }  # fmt: skip


def main() -> None:
    """Parse the command line and export."""
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--state", type=Path, required=True)
    parser.add_argument("--companions", type=Path, help="folder with the LoRA and the embedding that training.companions wrote")
    parser.add_argument("--model-seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=CHECKPOINT_DIR)
    options = parser.parse_args()
    tensors, facts = gather(options.state, options.model_seed)
    options.out.mkdir(parents=True, exist_ok=True)
    about = {
        "format": "pt",
        "modelspec.architecture": "stable-diffusion-v1",
        "modelspec.title": "fluent-sd",
        "modelspec.license": "MIT",
    }
    save_file(tensors, options.out / NAME, about | {"training": json.dumps(facts)})
    for name, config in diffusers_configs().items():
        path = COMPANION_DIR / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(config, indent=2) + "\n")
    for source, folder in (("fluent-blueprint.safetensors", "lora"), ("mint-flat.safetensors", "embeddings")):
        if options.companions is not None:
            (options.out / folder).mkdir(exist_ok=True)
            shutil.copyfile(options.companions / source, options.out / folder / source)
    size = sum(path.stat().st_size for path in options.out.rglob("*") if path.is_file())
    log.info(
        "%s: %.1f million parameters; the folder holds %.2f MB",
        options.out / NAME,
        sum(t.numel() for t in tensors.values()) / 1e6,
        size / 1e6,
    )


if __name__ == "__main__":
    main()
