"""The mixed list that batches are timed with: two checkpoints, four mixes of LoRAs, three sizes, shuffled."""

from __future__ import annotations

import argparse
import itertools
import json
import random
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from ov_backend.checkpoint import load_pipeline
from tests.helpers.random_checkpoint import write_random_checkpoint

#: What the networks of the list can be; "sd15" has Stable Diffusion 1.5's shapes.
NETWORKS = ("small", "demo", "sd15")
LORAS = ("bench-a", "bench-b", "bench-c")
_DEMO = Path(__file__).parents[1] / "demo_checkpoint" / "fluent-sd.safetensors"
_RANK = 4
_SD15_UNET = {
    "block_out_channels": [320, 640, 1280, 1280],
    "down_block_types": ["CrossAttnDownBlock2D"] * 3 + ["DownBlock2D"],
    "up_block_types": ["UpBlock2D"] + ["CrossAttnUpBlock2D"] * 3,
    "cross_attention_dim": 768,
    "attention_head_dim": 8,
}
_SD15_VAE = {"block_out_channels": [128, 256, 512, 512], "layers_per_block": 2}
_SD15_TEXT = {"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12}
#: What a random checkpoint's configuration needs to have Stable Diffusion 1.5's shapes.
SD15: dict[str, dict[str, Any]] = {"unet": _SD15_UNET, "vae": _SD15_VAE, "text": _SD15_TEXT}


def write_checkpoints(networks: str, folder: Path) -> list[Path]:
    """Two checkpoints of one architecture in ``folder``, with other weights each."""
    paths = [folder / f"bench-{name}.safetensors" for name in ("first", "second")]
    if networks == "demo":
        for path in paths:
            shutil.copy(_DEMO.with_suffix(".yaml"), path.with_suffix(".yaml"))
        shutil.copy(_DEMO, paths[0])
        save_file(_changed(load_file(_DEMO)), paths[1])
        return paths
    sd15 = SD15 if networks == "sd15" else {}
    for seed, path in enumerate(paths):
        write_random_checkpoint(path, seed, **sd15)
        if sd15:  # its 8 heads are what is assumed without a configuration
            path.with_suffix(".yaml").unlink()
    return paths


def _changed(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Weights that draw almost the same pictures."""
    generator = torch.Generator().manual_seed(0)

    def change(tensor: torch.Tensor) -> torch.Tensor:
        return (tensor.float() * (1 + 0.01 * torch.randn(tensor.shape, generator=generator))).to(tensor.dtype)

    return {name: change(each) if each.is_floating_point() and each.dim() > 1 else each for name, each in tensors.items()}


def write_loras(checkpoint: Path, folder: Path) -> None:
    """Three LoRAs of random weights for the UNet's attention."""
    unet = load_pipeline(checkpoint).unet
    layers = [(name, module.weight.shape) for name, module in unet.named_modules() if name.endswith(("to_q", "to_k", "to_v"))]
    folder.mkdir(exist_ok=True)
    for seed, lora in enumerate(LORAS):
        generator, tensors = torch.Generator().manual_seed(seed), {}
        for name, (outputs, inputs) in layers:
            key = "lora_unet_" + name.replace(".", "_")
            tensors[f"{key}.lora_down.weight"] = torch.randn(_RANK, inputs, generator=generator) / inputs**0.5
            tensors[f"{key}.lora_up.weight"] = torch.randn(outputs, _RANK, generator=generator) * 0.05
        save_file(tensors, folder / f"{lora}.safetensors")


def write_job(options: argparse.Namespace, folder: Path) -> Path:
    """The list, with checkpoints in ``folder`` and LoRAs in its folder ``lora``, where a batch finds them."""
    checkpoints = options.checkpoint or write_checkpoints(options.networks, folder)
    write_loras(checkpoints[0], folder / "lora")
    first, second, third = LORAS
    mixes = ("", f"<lora:{first}:1>", f"<lora:{second}:0.5>", f"<lora:{first}:0.7> <lora:{third}:0.3>")
    half = options.size // 2
    sizes = (f"{options.size}x{options.size}", f"{half}x{options.size}", f"{options.size}x{half}")
    kinds = random.Random(1).sample(list(itertools.product(checkpoints, mixes, sizes)), options.kinds)
    rows = [kinds[i % len(kinds)] for i in range(options.rows)]
    random.Random(0).shuffle(rows)
    shared = {"steps": options.steps, "sampler_name": options.sampler, "cfg_scale": options.cfg_scale}
    with (folder / "job.jsonl").open("w", encoding="utf-8") as file:
        for seed, (checkpoint, mix, size) in enumerate(rows):
            row = {"prompt": f"a lighthouse {mix}", "seed": seed, "checkpoint": str(checkpoint.resolve()), "size": size, **shared}
            file.write(json.dumps(row) + "\n")
    return folder / "job.jsonl"
