"""Small files of random weights for a Forge or reForge: checkpoints, VAEs, text encoders, LoRAs, an embedding, a ControlNet.

``python -m tests.integration.e2e.checkpoints FOLDER`` writes them into the folders of a WebUI, and changes the few sizes that the
WebUI fixes: of the VAE, of the larger text encoders, and how deep SDXL's transformers are and how large Flux is. The WebUI is
of no other use afterwards. Weights in few bits: ``forge_few_bits.py``. For AUTOMATIC1111's WebUI: ``demo_variants.py``.
"""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from ov_backend.checkpoint import keys
from ov_backend.checkpoint.header import CLIP, OPEN_CLIP, UNET, VAE, XL_CLIP, XL_OPEN_CLIP

Shapes = dict[str, tuple[int, ...]]
#: The width of the small Flux and Chroma, which their T5 shares; heads have 128 channels there. And that of SD3's T5.
WIDTH, DOUBLE, SINGLE, _SD3_WIDTH = 256, 2, 2, 4096
_VAE_CHANNELS = [32, 64, 128, 128]


# ---- shapes, by the names in a file


def unet(channels: list[int], plain: int, **config: Any) -> Shapes:
    """A UNet with one residual block a level; the first ``plain`` levels are without attention."""
    from diffusers import UNet2DConditionModel

    kinds = ["{}Block2D"] * plain + ["CrossAttn{}Block2D"] * (len(channels) - plain)
    down, up = [kind.format("Down") for kind in kinds], [kind.format("Up") for kind in reversed(kinds)]
    shape = {"block_out_channels": channels, "layers_per_block": 1, "down_block_types": down, "up_block_types": up}
    with torch.device("meta"):
        network = UNet2DConditionModel(**shape, **config)
    name = keys.unet_names(shape)
    return {UNET + name(key): tuple(value.shape) for key, value in network.named_parameters()}


def vae(prefix: str = VAE, latents: int = 4, quantised: bool = True) -> Shapes:
    """A VAE of a quarter of the true channels."""
    from diffusers import AutoencoderKL

    levels = len(_VAE_CHANNELS)
    blocks = {"down_block_types": ["DownEncoderBlock2D"] * levels, "up_block_types": ["UpDecoderBlock2D"] * levels}
    blocks |= {"use_quant_conv": quantised, "use_post_quant_conv": quantised}
    with torch.device("meta"):
        network = AutoencoderKL(block_out_channels=_VAE_CHANNELS, layers_per_block=2, latent_channels=latents, **blocks)
    shapes = {}
    for key, value in network.named_parameters():
        ones = (1, 1) if "attentions" in key and value.dim() == 2 else ()  # the original attends by convolutions
        shapes[prefix + keys.vae_names(levels)(key)] = (*value.shape, *ones)
    return shapes


def text(width: int, layers: int) -> Shapes:
    """A CLIP text encoder of transformers, by its own names."""
    from transformers import CLIPTextConfig, CLIPTextModelWithProjection

    sizes = {"hidden_size": width, "projection_dim": width, "intermediate_size": 4 * width, "num_hidden_layers": layers}
    with torch.device("meta"):
        network = CLIPTextModelWithProjection(CLIPTextConfig(vocab_size=49408, num_attention_heads=width // 64, **sizes))
    return {keys.clip_name(key): tuple(value.shape) for key, value in network.named_parameters()}


def clip(prefix: str) -> Shapes:
    """CLIP-L, of true size."""
    return {prefix + name: shape for name, shape in text(768, 12).items() if "projection" not in name}


def open_clip(prefix: str, width: int, layers: int = 3) -> Shapes:
    """A CLIP under open_clip's names, where query, key and value are thirds of one matrix."""
    found = {keys.open_clip_name(name): shape for name, shape in text(width, layers).items()}
    thirds = {name.partition("#")[0]: (3 * shape[0], *shape[1:]) for name, shape in found.items() if "#" in name}
    return {prefix + name: shape for name, shape in {**found, **thirds}.items() if "#" not in name}


def t5(width: int, layers: int = 2) -> Shapes:
    """A T5 encoder; see ``_T5``."""
    inner, hidden = _T5["num_heads"] * _T5["d_kv"], _T5["d_ff"]
    shapes: Shapes = {"shared.weight": (32128, width), "encoder.final_layer_norm.weight": (width,)}
    shapes["encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight"] = (32, _T5["num_heads"])
    for block in range(layers):
        attention, dense = f"encoder.block.{block}.layer.0.", f"encoder.block.{block}.layer.1."
        shapes |= {f"{attention}SelfAttention.{name}.weight": (inner, width) for name in "qkv"}
        shapes |= {f"{attention}SelfAttention.o.weight": (width, inner), f"{attention}layer_norm.weight": (width,)}
        shapes |= {f"{dense}DenseReluDense.{name}.weight": (hidden, width) for name in ("wi_0", "wi_1")}
        shapes |= {f"{dense}DenseReluDense.wo.weight": (width, hidden), f"{dense}layer_norm.weight": (width,)}
    return shapes


def linear(name: str, out: int, width: int) -> Shapes:
    return {f"{name}.weight": (out, width), f"{name}.bias": (out,)}


def two_layers(name: str, width: int, of: int, parts: tuple[str, str] = ("in_layer", "out_layer")) -> Shapes:
    return linear(f"{name}.{parts[0]}", width, of) | linear(f"{name}.{parts[1]}", width, width)


def flux(chroma: bool = False) -> Shapes:
    """The transformer of Flux, or that of Chroma, whose modulations come from one network."""
    w = WIDTH
    shapes = linear("img_in", w, 64) | linear("txt_in", w, w) | linear("final_layer.linear", 64, w)
    if chroma:
        guide = "distilled_guidance_layer"
        shapes |= linear(f"{guide}.in_proj", w, 64) | linear(f"{guide}.out_proj", w, w)
        for number in range(2):
            shapes |= two_layers(f"{guide}.layers.{number}", w, w) | {f"{guide}.norms.{number}.scale": (w,)}
    else:
        for name, width in ("time_in", 256), ("guidance_in", 256), ("vector_in", 768):
            shapes |= two_layers(name, w, width)
        shapes |= linear("final_layer.adaLN_modulation.1", 2 * w, w)
    for number, side in ((number, side) for number in range(DOUBLE) for side in ("img", "txt")):
        block = f"double_blocks.{number}.{side}"
        shapes |= {} if chroma else linear(f"{block}_mod.lin", 6 * w, w)
        shapes |= linear(f"{block}_attn.qkv", 3 * w, w) | linear(f"{block}_attn.proj", w, w)
        shapes |= {f"{block}_attn.norm.{name}_norm.scale": (128,) for name in ("query", "key")}
        shapes |= linear(f"{block}_mlp.0", 4 * w, w) | linear(f"{block}_mlp.2", w, 4 * w)
    for number in range(SINGLE):
        block = f"single_blocks.{number}"
        shapes |= linear(f"{block}.linear1", 7 * w, w) | linear(f"{block}.linear2", w, 5 * w)
        shapes |= {f"{block}.norm.{name}_norm.scale": (128,) for name in ("query", "key")}
        shapes |= {} if chroma else linear(f"{block}.modulation.lin", 3 * w, w)
    return shapes


def sd3(depth: int = 2) -> Shapes:
    """The transformer of Stable Diffusion 3, whose width is 64 times its depth."""
    w = 64 * depth
    shapes: Shapes = {"pos_embed": (1, 36864, w), "x_embedder.proj.weight": (w, 16, 2, 2), "x_embedder.proj.bias": (w,)}
    shapes |= linear("context_embedder", w, _SD3_WIDTH) | linear("final_layer.linear", 64, w)
    shapes |= linear("final_layer.adaLN_modulation.1", 2 * w, w)
    shapes |= two_layers("t_embedder.mlp", w, 256, ("0", "2")) | two_layers("y_embedder.mlp", w, 2048, ("0", "2"))
    for number, side in ((number, side) for number in range(depth) for side in ("x", "context")):
        block, last = f"joint_blocks.{number}.{side}_block", side == "context" and number == depth - 1
        shapes |= linear(f"{block}.attn.qkv", 3 * w, w) | linear(f"{block}.adaLN_modulation.1", (2 if last else 6) * w, w)
        if not last:  # of the prompt's last block only keys and values are used
            shapes |= linear(f"{block}.attn.proj", w, w)
            shapes |= linear(f"{block}.mlp.fc1", 4 * w, w) | linear(f"{block}.mlp.fc2", w, 4 * w)
    return {UNET + name: shape for name, shape in shapes.items()}


def controlnet(of: Shapes) -> Shapes:
    """A ControlNet for a UNet."""
    parts = ("time_embed", "input_blocks", "middle_block")
    own = {name.removeprefix(UNET): shape for name, shape in of.items()}
    shapes: Shapes = {name: shape for name, shape in own.items() if name.startswith(parts)}
    widths = [3, 16, 16, 32, 32, 96, 96, 256, 320]
    for number, (width, out) in enumerate(itertools.pairwise(widths)):
        shapes |= {f"input_hint_block.{2 * number}.weight": (out, width, 3, 3), f"input_hint_block.{2 * number}.bias": (out,)}
    blocks = sorted({int(name.split(".")[1]) for name in shapes if name.startswith("input_blocks.")})
    ends = {"middle_block_out.0": 640}
    for block in blocks:
        last = [shape for name, shape in shapes.items() if name.startswith(f"input_blocks.{block}.") and name.endswith("bias")]
        ends[f"zero_convs.{block}.0"] = last[-1][0]
    for name, width in ends.items():
        shapes |= {f"{name}.weight": (width, width, 1, 1), f"{name}.bias": (width,)}
    return {f"control_model.{name}": shape for name, shape in shapes.items()}


# ---- weights


def random_weights(shapes: Shapes, seed: int, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Random weights of these shapes, which neither grow nor shrink what they are applied to."""
    generator, weights = torch.Generator().manual_seed(seed), {}
    for name, shape in shapes.items():
        values = torch.randn(shape, generator=generator)
        if len(shape) == 1:
            weight = 0.05 * values + float(not name.endswith("bias"))
        elif name.endswith(("pos_embed", "positional_embedding", "embedding.weight", "shared.weight")):
            weight = 0.5 * values
        else:
            weight = values * values[0].numel() ** -0.5
        weights[name] = weight.to(dtype).contiguous()
    return weights


def write(file: Path, shapes: Shapes, seed: int = 0) -> Path:
    """Write random weights of these shapes, in float16."""
    weights = random_weights(shapes, seed, torch.float16)
    file.parent.mkdir(parents=True, exist_ok=True)
    save_file(weights, file, {"format": "pt"})
    return file


def write_lora(file: Path, shapes: Shapes, seed: int, convolutions: bool = False, rank: int = 4) -> None:
    """Write a LoRA for the matrices among these weights of a checkpoint of Stable Diffusion 1."""
    torch.manual_seed(seed)
    weights = {}
    for name, shape in shapes.items():
        if not name.endswith(".weight") or not (len(shape) == 2 or (convolutions and len(shape) == 4)) or "embed" in name:
            continue
        kind = "lora_unet_" + name.removeprefix(UNET) if name.startswith(UNET) else "lora_te_" + name.removeprefix(CLIP)
        layer, ones = kind.removesuffix(".weight").replace(".", "_"), [1] * (len(shape) - 2)
        down = torch.randn(rank, *shape[1:])
        weights[f"{layer}.lora_up.weight"] = torch.randn(shape[0], rank, *ones) * 0.15 / (down[0].numel() * rank) ** 0.5
        weights[f"{layer}.lora_down.weight"], weights[f"{layer}.alpha"] = down, torch.tensor(float(rank))
    file.parent.mkdir(parents=True, exist_ok=True)
    save_file(weights, file)


def write_previews(models: Path) -> None:
    """Write the networks that the WebUI would download for its previews, and TAESD's encoder."""

    def convolution(name: int | str, out: int, width: int) -> Shapes:
        return {f"{name}.weight": (out, width, 3, 3), f"{name}.bias": (out,)}

    def block(number: int) -> Shapes:
        return {name: shape for each in (0, 2, 4) for name, shape in convolution(f"{number}.conv.{each}", 64, 64).items()}

    for name, latents in ("taesd", 4), ("taesdxl", 4), ("taesd3", 16), ("taef1", 16):
        decoder = convolution(1, 64, latents) | convolution(19, 3, 64)
        encoder = convolution(0, 64, 3) | convolution(14, latents, 64)
        for number in (7, 12, 17):
            decoder |= {f"{number}.weight": (64, 64, 3, 3)}
        for number in (2, 6, 10):
            encoder |= {f"{number}.weight": (64, 64, 3, 3)}
        for number in (3, 4, 5, 8, 9, 10, 13, 14, 15, 18):
            decoder |= block(number)
        for number in (1, 3, 4, 5, 7, 8, 9, 11, 12, 13):
            encoder |= block(number)
        for half, shapes in ("decoder", decoder), ("encoder", encoder):
            save_pickled(models / "VAE-taesd" / f"{name}_{half}.pth", random_weights(shapes, 0, torch.float32))
    widths = [4, 8, 16, 32, 64, 32, 16, 8, 3]
    approximate: Shapes = {}
    for number, (width, out) in enumerate(itertools.pairwise(widths), start=1):
        size = {1: 7, 2: 5}.get(number, 3)
        approximate |= {f"conv{number}.weight": (out, width, size, size), f"conv{number}.bias": (out,)}
    for name in ("model.pt", "vaeapprox-sdxl.pt"):
        if not (models / "VAE-approx" / name).exists():
            save_pickled(models / "VAE-approx" / name, random_weights(approximate, 0, torch.float32))


def save_pickled(file: Path, value: Any) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    # the WebUI refuses what a newer PyTorch adds to a zip file
    torch.save(value, file, _use_new_zipfile_serialization=False)


# ---- a WebUI


def sd1_unet(channels: int = 4) -> Shapes:
    return unet([320, 640], 0, cross_attention_dim=768, attention_head_dim=8, in_channels=channels)


def write_all(folder: Path, forge: bool) -> None:
    """Write all files into a WebUI's folders."""
    models = folder / "models"
    checkpoints, small = models / "Stable-diffusion", sd1_unet()
    clip_l = clip(CLIP)
    for seed, name in enumerate("abcd"):
        write(checkpoints / f"e2e-{name}.safetensors", small | vae() | clip_l, seed)
    write(checkpoints / "e2e-inpaint.safetensors", sd1_unet(9) | vae() | clip_l, 5)
    linear_projection = {"use_linear_projection": True, "attention_head_dim": [5, 10]}
    sd2 = unet([320, 640], 0, cross_attention_dim=1024, **linear_projection)
    write(checkpoints / "e2e-sd2.safetensors", sd2 | vae() | open_clip(OPEN_CLIP, 1024), 6)
    for config in folder.glob("repositories/*/configs/stable-diffusion/v2-inference.yaml"):
        # without it reForge loads the weights into a UNet of true size, to see what they predict
        (checkpoints / "e2e-sd2.yaml").write_text(config.read_text(encoding="utf-8"), encoding="utf-8")
    sizes = {"addition_embed_type": "text_time", "addition_time_embed_dim": 256}
    size_of = "projection_class_embeddings_input_dim"
    xl = unet([320, 640], 1, cross_attention_dim=2048, **linear_projection, **sizes, **{size_of: 2816})
    write(checkpoints / "e2e-xl.safetensors", xl | vae() | clip(XL_CLIP) | open_clip(XL_OPEN_CLIP, 1280), 7)
    heads = {**linear_projection, "attention_head_dim": [6, 12]}
    refiner = unet([384, 768], 1, cross_attention_dim=1280, **heads, **sizes, **{size_of: 2560})
    write(checkpoints / "e2e-refiner.safetensors", refiner | vae() | open_clip("conditioner.embedders.0.model.", 1280), 8)
    for seed, (name, part) in enumerate({"both": small | clip_l, "unet": small, "text": clip_l}.items()):
        write_lora(models / "Lora" / f"e2e-{name}.safetensors", part, seed)
    write_lora(models / "Lora" / "e2e-z-convolutions.safetensors", small, 9, convolutions=True)
    write(models / "VAE" / "e2e-other.vae.safetensors", vae(""), 11)
    write(models / "ControlNet" / "e2e-control_v11p_sd15_canny.safetensors", controlnet(small), 12)
    save_file({"emb_params": 0.5 * torch.randn(2, 768)}, folder / "embeddings" / "e2e-word.safetensors")
    write_previews(models)
    if forge:
        write_transformers(models)


def write_transformers(models: Path) -> None:
    """Write what Forge alone has: Stable Diffusion 3, Flux and Chroma."""
    text_encoders = {f"text_encoders.clip_l.transformer.{name}": shape for name, shape in text(768, 12).items()}
    text_encoders |= {f"text_encoders.clip_g.transformer.{name}": shape for name, shape in text(1280, 3).items()}
    text_encoders |= {f"text_encoders.t5xxl.transformer.{name}": shape for name, shape in t5(_SD3_WIDTH).items()}
    write(models / "Stable-diffusion" / "e2e-sd3.safetensors", sd3() | vae(latents=16, quantised=False) | text_encoders, 13)
    write(models / "Stable-diffusion" / "e2e-flux.safetensors", flux(), 14)
    write(models / "Stable-diffusion" / "e2e-chroma.safetensors", flux(chroma=True), 15)
    write(models / "VAE" / "e2e-flux-ae.safetensors", vae("", latents=16, quantised=False), 16)
    write(models / "text_encoder" / "e2e-flux-clip.safetensors", clip(""), 17)
    write(models / "text_encoder" / "e2e-flux-t5.safetensors", t5(WIDTH), 18)


_T5: dict[str, Any] = {"d_ff": 512, "d_kv": 64, "num_heads": 4, "num_layers": 2}
#: In a file of a WebUI, a text and what takes its place.
_SIZES = {
    "huggingface_guess/huggingface_guess/model_list.py": {"[0, 0, 2, 2, 10, 10]": "[0, 1]", "[0, 0, 4, 4, 4, 4, 0, 0]": "[0, 1]"},
    "huggingface_guess/huggingface_guess/detection.py": {
        '["context_in_dim"] = 4096': f'["context_in_dim"] = {WIDTH}',
        '["hidden_size"] = 3072': f'["hidden_size"] = {WIDTH}',
        '["num_heads"] = 24': f'["num_heads"] = {WIDTH // 128}',
        '["depth"] = 19': f'["depth"] = {DOUBLE}',
        '["depth_single_blocks"] = 38': f'["depth_single_blocks"] = {SINGLE}',
    },
    "backend/loader.py": {
        "'guidance_out_dim': 3072": f"'guidance_out_dim': {WIDTH}",
        "'guidance_hidden_dim': 5120": f"'guidance_hidden_dim': {WIDTH}",
        "'guidance_n_layers': 5": "'guidance_n_layers': 2",
    },
    "ldm_patched/modules/supported_models.py": {"[0, 0, 2, 2, 10, 10]": "[0, 1]", "[0, 0, 4, 4, 4, 4, 0, 0]": "[0, 1]"},
    "ldm_patched/modules/sd.py": {"'ch': 128,": "'ch': 32,"},
}


def configurations(folder: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """A WebUI's own configurations of networks whose sizes it fixes, with the changes."""
    for file in (folder / "backend" / "huggingface").glob("**/config.json"):
        config = json.loads(file.read_text(encoding="utf-8"))
        if config.get("_class_name") == "AutoencoderKL":
            yield file, {"block_out_channels": _VAE_CHANNELS}
        elif config.get("hidden_size") in (1024, 1280) and "text_encoder" in file.parent.name:
            yield file, {"num_hidden_layers": 3}
        elif config.get("model_type") == "t5":
            yield file, {**_T5, "d_model": _SD3_WIDTH if "stable-diffusion-3" in str(file) else WIDTH}
    for file in (folder / "ldm_patched" / "modules").glob("**/*clip*config*.json"):
        if file.name in ("clip_config_bigg.json", "sd2_clip_config.json"):
            yield file, {"num_hidden_layers": 3}


def shrink(folder: Path) -> None:
    """Change the sizes that a WebUI fixes."""
    for file, changes in configurations(folder):
        config = {**json.loads(file.read_text(encoding="utf-8")), **changes}
        file.write_text(json.dumps(config, indent=2), encoding="utf-8")
    for name, changes in _SIZES.items():
        for file in (folder / name, folder / "repositories" / name):
            if file.exists():
                text = file.read_text(encoding="utf-8")
                for before, after in changes.items():
                    text = text.replace(before, after)
                file.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    webui = Path(sys.argv[1])
    shrink(webui)
    write_all(webui, forge=(webui / "backend").exists())
