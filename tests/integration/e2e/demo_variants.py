"""Variants of the demo checkpoint for AUTOMATIC1111's WebUI: of each kind that it loads, and files that go with them.

``python -m tests.integration.e2e.demo_variants FOLDER`` writes them into the folders of a WebUI. The weights are those of the
demo checkpoint with some noise, and random ones where its shapes do not fit: a small SDXL, a refiner, SD2, an inpainting
checkpoint, one whose UNet has the levels that extensions for ControlNet expect, LoRAs, a VAE, a hypernetwork, and networks of
previews.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from ov_backend.checkpoint.companion_files import parse_yaml
from ov_backend.checkpoint.header import CLIP, OPEN_CLIP, UNET, VAE, XL_CLIP, XL_OPEN_CLIP
from tests.integration.e2e.checkpoints import Shapes, open_clip, random_weights, save_pickled, write_previews

DEMO = Path(__file__).parents[3] / "demo_checkpoint"
TOKENIZER = "models/Stable-diffusion/fluent-sd/tokenizer"
#: The smallest of open_clip's architectures: its name, width, layers; and the width of the demo checkpoint's own encoder.
ARCH, OPEN_WIDTH, OPEN_LAYERS, WIDTH = "ViT-B-32", 512, 12, 48
#: Of SDXL's vector: sizes and places, six numbers of 256 channels; a refiner has one number less.
XL_NUMBERS, REFINER_NUMBERS = 6 * 256, 5 * 256
REFINER_OPEN_CLIP = "conditioner.embedders.0.model."

Weights = dict[str, torch.Tensor]
Config = dict[str, Any]


def read_yaml(file: Path) -> Config:
    config: Config = parse_yaml(file.read_text(encoding="utf-8"))
    return config


def noisy(weights: Weights, seed: int) -> Weights:
    """The same weights with noise of two hundredths of their spread."""
    generator = torch.Generator().manual_seed(seed)

    def changed(value: torch.Tensor) -> torch.Tensor:
        if not value.is_floating_point() or value.numel() < 2:
            return value
        return (value + 0.02 * value.float().std() * torch.randn(value.shape, generator=generator)).to(value.dtype)

    return {name: changed(value) for name, value in weights.items()}


def part(weights: Weights, prefix: str, renamed: str | None = None) -> Weights:
    """The weights below a prefix, below another one if that is given."""
    new = prefix if renamed is None else renamed
    return {new + name.removeprefix(prefix): value for name, value in weights.items() if name.startswith(prefix)}


def random(shapes: Shapes, seed: int) -> Weights:
    return random_weights(shapes, seed, torch.float16)


def unet_for(weights: Weights, context: int, vector: int = 0) -> Weights:
    """The demo checkpoint's UNet for embeddings of another width, and of SDXL's kind if it takes a vector."""
    found = part(weights, UNET)
    shapes = {name: (len(value), context) for name, value in found.items() if "attn2.to_k" in name or "attn2.to_v" in name}
    if vector:
        wide = len(found[f"{UNET}time_embed.2.bias"])
        shapes |= {f"{UNET}label_emb.0.0.weight": (wide, vector), f"{UNET}label_emb.0.0.bias": (wide,)}
        shapes |= {f"{UNET}label_emb.0.2.weight": (wide, wide), f"{UNET}label_emb.0.2.bias": (wide,)}
    return found | random(shapes, context)


def unet_of_ldm(**config: Any) -> Weights:
    """A random UNet of the original class."""
    from ldm.modules.diffusionmodules.openaimodel import UNetModel

    with torch.device("meta"):
        network = UNetModel(**config)
    return random({UNET + name: tuple(value.shape) for name, value in network.named_parameters()}, 3)


def sgm_config(folder: Path, name: str, demo: Config, context: int, vector: int) -> Config:
    """Stability's configuration of SDXL or its refiner, with the demo checkpoint's sizes."""
    config = read_yaml(folder / "repositories" / "generative-models" / "configs" / "inference" / f"{name}.yaml")
    params, own = config["model"]["params"], demo["model"]["params"]
    sizes = ("model_channels", "attention_resolutions", "num_res_blocks", "channel_mult", "num_heads")
    network = params["network_config"]["params"]
    network |= {each: own["unet_config"]["params"][each] for each in sizes}
    network |= {"adm_in_channels": vector, "context_dim": context, "transformer_depth": 1, "num_head_channels": 32}
    network |= {"use_linear_in_transformer": False, "use_checkpoint": False, "spatial_transformer_attn_type": "softmax"}
    params["first_stage_config"]["params"]["ddconfig"] = own["first_stage_config"]["params"]["ddconfig"]
    for embedder in params["conditioner_config"]["params"]["emb_models"]:
        if embedder["target"].endswith("FrozenCLIPEmbedder"):
            embedder["params"] = {"layer": "last", "version": TOKENIZER}
        elif "OpenCLIP" in embedder["target"]:
            embedder["params"] |= {"arch": ARCH, "version": "laion2b_s34b_b79k"}
    return config


def write(folder: Path, name: str, weights: Weights, config: Config) -> None:
    file = folder / "models" / "Stable-diffusion" / f"{name}.safetensors"
    save_file({key: value.contiguous() for key, value in weights.items()}, file, {"format": "pt"})
    file.with_suffix(".yaml").write_text(json.dumps(config, indent=1), encoding="utf-8")  # JSON is YAML


def write_checkpoints(folder: Path) -> None:
    """Write the demo checkpoint and its variants, each with its configuration beside it."""
    models = folder / "models" / "Stable-diffusion"
    shutil.copytree(DEMO / "fluent-sd", models / "fluent-sd", dirs_exist_ok=True)
    demo, config = load_file(DEMO / "fluent-sd.safetensors"), read_yaml(DEMO / "fluent-sd.yaml")
    write(folder, "fluent-sd", demo, config)

    def changed(params: Config, unet: Config) -> Config:
        changes = read_yaml(DEMO / "fluent-sd.yaml")
        changes["model"]["params"] |= params
        changes["model"]["params"]["unet_config"]["params"] |= unet
        return changes

    for seed, name in enumerate("abcd"):  # the second one's schedule is another
        write(folder, f"e2e-{name}", noisy(demo, seed), changed({"linear_end": 0.013} if name == "b" else {}, {}))
    first = f"{UNET}input_blocks.0.0.weight"
    masked = torch.cat([demo[first], 0.05 * torch.randn(len(demo[first]), 5, 3, 3).half()], 1)
    inpaint = changed({"conditioning_key": "hybrid", "finetune_keys": None}, {"in_channels": 9})
    inpaint["model"]["target"] = "ldm.models.diffusion.ddpm.LatentInpaintDiffusion"
    write(folder, "e2e-inpaint", demo | {first: masked}, inpaint)
    levels = {"channel_mult": [1, 2, 2, 2], "attention_resolutions": [4, 2, 1]}
    controlled = changed({}, levels)
    rest = {name: value for name, value in demo.items() if not name.startswith(UNET)}
    write(folder, "e2e-z-control", rest | unet_of_ldm(**controlled["model"]["params"]["unet_config"]["params"]), controlled)

    second = changed({"parameterization": "v"}, {"context_dim": OPEN_WIDTH})
    text = "ldm.modules.encoders.modules.FrozenOpenCLIPEmbedder"
    second["model"]["params"]["cond_stage_config"] = {
        "target": text, "params": {"arch": ARCH, "version": "laion2b_s34b_b79k", "freeze": True, "layer": "penultimate"}
    }  # fmt: skip
    clip = random(open_clip(OPEN_CLIP, OPEN_WIDTH, OPEN_LAYERS), 6)
    write(folder, "e2e-sd2", unet_for(demo, OPEN_WIDTH) | part(demo, VAE) | clip, second)
    both, vector = WIDTH + OPEN_WIDTH, OPEN_WIDTH + XL_NUMBERS
    clips = part(demo, CLIP, XL_CLIP) | part(clip, OPEN_CLIP, XL_OPEN_CLIP)
    base = sgm_config(folder, "sd_xl_base", config, both, vector)
    write(folder, "e2e-xl", unet_for(demo, both, vector) | part(demo, VAE) | clips, base)
    vector = OPEN_WIDTH + REFINER_NUMBERS
    refiner = sgm_config(folder, "sd_xl_refiner", config, OPEN_WIDTH, vector)
    clips = part(clip, OPEN_CLIP, REFINER_OPEN_CLIP)
    write(folder, "e2e-refiner", unet_for(demo, OPEN_WIDTH, vector) | part(demo, VAE) | clips, refiner)
    other = folder / "models" / "VAE" / "e2e-other.vae.safetensors"
    other.parent.mkdir(exist_ok=True)
    save_file(noisy(part(demo, VAE, ""), 11), other)


def write_rest(folder: Path) -> None:
    """Write LoRAs, an embedding, a hypernetwork and the networks of previews."""
    lora, models = load_file(DEMO / "lora" / "fluent-blueprint.safetensors"), folder / "models"
    (models / "Lora").mkdir(exist_ok=True)
    for seed in range(7):
        save_file(noisy(lora, seed) if seed else lora, models / "Lora" / f"e2e-{seed}.safetensors")
    shutil.copy(DEMO / "embeddings" / "mint-flat.safetensors", folder / "embeddings")
    hypernetwork: dict[Any, Any] = {"step": 1, "name": "e2e", "layer_structure": [1, 2, 1], "activation_func": "linear"}
    for size in (WIDTH, 64, 128):
        shapes = {"linear.0.weight": (2 * size, size), "linear.0.bias": (2 * size,)}
        shapes |= {"linear.1.weight": (size, 2 * size), "linear.1.bias": (size,)}
        two = (random_weights(shapes, seed, torch.float32) for seed in (size, size + 1))
        hypernetwork[size] = tuple({name: 0.1 * value for name, value in each.items()} for each in two)
    save_pickled(models / "hypernetworks" / "e2e.pt", hypernetwork)
    write_previews(models)


if __name__ == "__main__":
    webui = Path(sys.argv[1])
    write_checkpoints(webui)
    write_rest(webui)
