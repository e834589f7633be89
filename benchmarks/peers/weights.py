"""The weights that every peer loads: Stable Diffusion 1.5 with random weights, a second checkpoint, and a LoRA.

They are written once per run, as files in diffusers' layout, and every peer loads them as its users would.
"""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch

TOKENIZER = Path(__file__).parents[2] / "demo_checkpoint" / "fluent-sd" / "tokenizer"
RANK = 4
#: The noise that the networks were trained with: the first and the last beta, and the number of steps between them.
BETAS, TRAINED_STEPS = (0.00085, 0.012), 1000
TEXT = {
    "vocab_size": 49408,
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "max_position_embeddings": 77,
    "hidden_act": "quick_gelu",
    "projection_dim": 768,
    "bos_token_id": 49406,
    "eos_token_id": 49407,
    "pad_token_id": 49407,
}
_UNET = {"sample_size": 64, "cross_attention_dim": 768, "attention_head_dim": 8}
VAE = {
    "block_out_channels": (128, 256, 512, 512),
    "down_block_types": ("DownEncoderBlock2D",) * 4,
    "up_block_types": ("UpDecoderBlock2D",) * 4,
    "layers_per_block": 2,
    "latent_channels": 4,
    "sample_size": 512,
}
#: Changes for networks of a hundredth of the size.
TINY_TEXT = {"hidden_size": 64, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 2, "projection_dim": 64}
_TINY_UNET = {"block_out_channels": (32, 64, 64, 64), "cross_attention_dim": 64}
TINY_VAE = {"block_out_channels": (32, 32, 32, 32), "layers_per_block": 1}


@torch.no_grad()
def write_pipeline(folder: Path, seed: int, tiny: bool) -> None:
    """Write the pipeline with seeded weights into ``folder``, in float32."""
    from diffusers import AutoencoderKL, DDIMScheduler, StableDiffusionPipeline, UNet2DConditionModel
    from transformers import CLIPTextConfig, CLIPTextModel, CLIPTokenizer

    generator = torch.Generator().manual_seed(seed)
    unet = UNet2DConditionModel(**{**_UNET, **(_TINY_UNET if tiny else {})})
    vae = AutoencoderKL(**{**VAE, **(TINY_VAE if tiny else {})})
    text = CLIPTextModel(CLIPTextConfig(**{**TEXT, **(TINY_TEXT if tiny else {})}))
    scheduler = DDIMScheduler(
        num_train_timesteps=TRAINED_STEPS,
        beta_start=BETAS[0],
        beta_end=BETAS[1],
        beta_schedule="scaled_linear",
        clip_sample=False,
        set_alpha_to_one=False,
        steps_offset=1,
    )
    pipe = StableDiffusionPipeline(
        unet=_randomise(unet, generator),
        vae=_randomise(vae, generator),
        text_encoder=_randomise(text, generator),
        tokenizer=CLIPTokenizer.from_pretrained(str(TOKENIZER), local_files_only=True),
        scheduler=scheduler,
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )
    # The output of random weights has an arbitrary scale; it is set to noise of deviation 1 and pictures that are rarely clipped.
    latents = torch.randn(1, 4, 16, 16, generator=generator)
    context = torch.randn(1, 77, unet.config.cross_attention_dim, generator=generator)
    scale(unet.conv_out, 1.0 / float(unet(latents, 500, encoder_hidden_states=context).sample.std()))
    scale(vae.decoder.conv_out, 0.4 / float(vae.decode(latents / vae.config.scaling_factor).sample.std()))
    pipe.save_pretrained(str(folder))
    _add_prefix(folder / "text_encoder" / "model.safetensors")
    for name in ("vocab.json", "merges.txt"):  # newer transformers write another file, which older versions do not read
        shutil.copyfile(TOKENIZER / name, folder / "tokenizer" / name)


def _add_prefix(path: Path) -> None:
    """Add the prefix "text_model.", which newer transformers leave out; older versions would not load the weights."""
    from safetensors.torch import load_file, save_file

    prefix = "text_model."
    tensors = {name if name.startswith(prefix) else prefix + name: tensor for name, tensor in load_file(str(path)).items()}
    save_file(tensors, str(path), {"format": "pt"})


def _randomise(network: Any, generator: torch.Generator) -> Any:
    """Set weights that depend on seed and shapes only, and not on a library's initialisation."""
    for name, parameter in network.named_parameters():
        fill(name, parameter, generator)
    return network.eval()


def fill(name: str, parameter: torch.Tensor, generator: torch.Generator) -> None:
    """Set one weight, so that the values in a network stay as large as they are."""
    if parameter.dim() == 1:
        parameter.normal_(float(name.endswith("weight")), 0.05, generator=generator)
    else:
        deviation = 0.5 if "token_embedding" in name or "position_embedding" in name else parameter[0].numel() ** -0.5
        parameter.normal_(0.0, deviation, generator=generator)


def scale(layer: Any, factor: float) -> None:
    """Multiply a layer's output."""
    layer.weight.mul_(factor)
    layer.bias.mul_(factor)


@torch.no_grad()
def write_lora(path: Path, unet: Path) -> None:
    """Write a LoRA of rank 4 for the attention layers of the UNet in the folder ``unet``, with kohya's names."""
    from safetensors import safe_open
    from safetensors.torch import save_file

    generator = torch.Generator().manual_seed(7)
    tensors = {}
    with safe_open(str(unet / "diffusion_pytorch_model.safetensors"), framework="pt") as file:
        for name in sorted(file.keys()):
            if ".to_" in name and name.endswith("weight"):
                weight = file.get_tensor(name)
                layer = _layer(name)
                up, down = (torch.randn(n, RANK, generator=generator) for n in weight.shape)
                tensors[f"{layer}.lora_down.weight"] = down.T.contiguous()
                tensors[f"{layer}.lora_up.weight"] = up * (0.5 * float(weight.std()))
                tensors[f"{layer}.alpha"] = torch.tensor(float(RANK))
    save_file(tensors, str(path), {"format": "pt"})


def _layer(name: str) -> str:
    return "lora_unet_" + name.removesuffix(".weight").replace(".", "_")


def lora_changes(path: Path, names: Iterable[str]) -> Iterator[tuple[str, torch.Tensor]]:
    """The names, among ``names``, of the UNet's parameters that the LoRA changes, and the change of each.

    Raises:
        ValueError: the LoRA changes other parameters too.
    """
    from safetensors.torch import load_file

    tensors = load_file(str(path))
    for name in names:
        if name.endswith(".weight") and tensors.pop(f"{_layer(name)}.alpha", None) is not None:
            yield name, tensors.pop(f"{_layer(name)}.lora_up.weight") @ tensors.pop(f"{_layer(name)}.lora_down.weight")
    if tensors:
        raise ValueError(f"{path} changes parameters that do not exist: {', '.join(list(tensors)[:3])} ...")


def seed_of(width: int, height: int) -> int:
    """The seed of a picture's initial noise."""
    return width * 10000 + height


def latents_for(width: int, height: int) -> torch.Tensor:
    """The initial noise for a picture of this size, the same for every peer."""
    generator = torch.Generator().manual_seed(seed_of(width, height))
    return torch.randn(1, 4, height // 8, width // 8, generator=generator)


def main() -> None:
    """Write the checkpoints and the LoRA into a folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--one", action="store_true", help="without the second checkpoint")
    options = parser.parse_args()
    for seed, name in enumerate(("first",) if options.one else ("first", "second")):
        write_pipeline(options.folder / name, seed, options.tiny)
    write_lora(options.folder / "lora.safetensors", options.folder / "first" / "unet")


if __name__ == "__main__":
    main()
