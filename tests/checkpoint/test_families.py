"""Small checkpoints of Stable Diffusion 1, 2 and XL: the weights that we read are those that diffusers reads.

diffusers reads them with the configuration that we have inferred. By itself it also loads a file that lacks weights, and not one
with the names of 2022.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("diffusers")

from safetensors.torch import load_file, save_file

from ov_backend.checkpoint import TOKENIZER, keys, load_pipeline
from ov_backend.checkpoint.header import CLIP, OPEN_CLIP, UNET, VAE, XL_CLIP, XL_OPEN_CLIP
from ov_backend.core.errors import CheckpointError

Tensors = dict[str, torch.Tensor]
ATTENTION, PLAIN = "CrossAttn{}Block2D", "{}Block2D"


def unet(kinds: list[str], **config: Any) -> Tensors:
    """A UNet of two levels, with heads of 64 channels, under its names in the file."""
    from diffusers import UNet2DConditionModel

    down, up = [kind.format("Down") for kind in kinds], [kind.format("Up") for kind in reversed(kinds)]
    shape = {"block_out_channels": [64, 128], "layers_per_block": 1, "down_block_types": down, "up_block_types": up}
    network = UNet2DConditionModel(**shape, **config)
    name = keys.unet_names(shape)
    return {UNET + name(key): value for key, value in network.named_parameters()}


def vae() -> Tensors:
    from diffusers import AutoencoderKL

    blocks = {"down_block_types": ["DownEncoderBlock2D"] * 2, "up_block_types": ["UpDecoderBlock2D"] * 2}
    network, name = AutoencoderKL(block_out_channels=[32, 32], layers_per_block=1, latent_channels=4, **blocks), keys.vae_names(2)
    return {VAE + name(key): value for key, value in network.named_parameters()}


def text(width: int, layers: int, projected: bool = False) -> torch.nn.Module:
    from transformers import CLIPTextConfig, CLIPTextModel, CLIPTextModelWithProjection

    shape = {"hidden_size": width, "intermediate_size": 64, "num_hidden_layers": layers, "num_attention_heads": width // 64}
    config = CLIPTextConfig(vocab_size=49408, projection_dim=width, **shape)
    return CLIPTextModelWithProjection(config) if projected else CLIPTextModel(config)


def clip(prefix: str, network: torch.nn.Module) -> Tensors:
    return {prefix + keys.clip_name(key): value for key, value in network.named_parameters()}


def open_clip(prefix: str, network: torch.nn.Module) -> Tensors:
    """Query, key and value are thirds of one matrix, and the projection is transposed."""
    found = {keys.open_clip_name(key): value for key, value in network.named_parameters()}
    tensors = {prefix + name: value for name, value in found.items() if "#" not in name}
    for name in {name.partition("#")[0] for name in found if "#" in name}:
        tensors[prefix + name] = torch.cat([found[f"{name}#{third}"] for third in range(3)])
    if "text_projection" in found:
        tensors[f"{prefix}text_projection"] = found["text_projection"].t()
    return tensors


def sd1() -> Tensors:
    heads = {"cross_attention_dim": 64, "attention_head_dim": 8}
    return unet([ATTENTION, PLAIN], **heads) | vae() | clip(CLIP, text(64, 2))


def sd2() -> Tensors:
    kind = {"cross_attention_dim": 64, "attention_head_dim": [1, 2], "use_linear_projection": True}
    return unet([ATTENTION, PLAIN], **kind) | vae() | open_clip(OPEN_CLIP, text(64, 3))


def sdxl() -> Tensors:
    kind = {"cross_attention_dim": 192, "attention_head_dim": [1, 2], "use_linear_projection": True}
    kind |= {"addition_embed_type": "text_time", "addition_time_embed_dim": 256, "transformer_layers_per_block": [1, 2]}
    texts = clip(XL_CLIP, text(64, 2)) | open_clip(XL_OPEN_CLIP, text(128, 2, projected=True))
    return unet([PLAIN, ATTENTION], projection_class_embeddings_input_dim=128 + 6 * 256, **kind) | vae() | texts


def written(tensors: Tensors, path: Path) -> Path:
    save_file({name: tensor.detach().half().contiguous() for name, tensor in tensors.items()}, str(path))
    return path


def weights(pipe: Any) -> Tensors:
    """All weights of a pipeline; versions of transformers have ``text_model.`` in the names of a text encoder, or have it not."""
    return {
        f"{name}.{key.removeprefix('text_model.')}": weight
        for name, part in pipe.components.items()
        if isinstance(part, torch.nn.Module)
        for key, weight in part.named_parameters()
    }


def by_diffusers(path: Path, pipe: Any) -> Any:
    """The pipeline as diffusers reads the file, with the configuration of ``pipe``."""
    folder = path.with_suffix("")
    for name, part in pipe.components.items():
        if name.startswith("tokenizer"):
            (folder / name).mkdir(parents=True)
            for file in ("vocab.json", "merges.txt", "tokenizer_config.json"):
                (folder / name / file).write_bytes((TOKENIZER / file).read_bytes())
        elif isinstance(part, torch.nn.Module) and name.startswith("text"):
            part.config.save_pretrained(folder / name)
        elif part is not None:
            part.save_config(folder / name)
    pipe.save_config(folder)
    return type(pipe).from_single_file(str(path), config=str(folder), local_files_only=True, torch_dtype=torch.float32)


@pytest.mark.parametrize("make", [sd1, sd2, sdxl])
def test_the_weights_are_those_that_diffusers_reads(make: Any, tmp_path: Path) -> None:
    torch.manual_seed(0)
    path = written(make(), tmp_path / "model.safetensors")
    pipe = load_pipeline(path)
    ours, theirs = weights(pipe), weights(by_diffusers(path, pipe))
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_the_names_of_2022_are_read_too(tmp_path: Path) -> None:
    path = written(sd1(), tmp_path / "new.safetensors")
    old = {name.replace(f"{CLIP}text_model.", CLIP): tensor for name, tensor in load_file(path).items()}
    ours, theirs = weights(load_pipeline(written(old, tmp_path / "old.safetensors"))), weights(load_pipeline(path))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_a_file_that_lacks_a_weight_of_any_part_is_refused(tmp_path: Path) -> None:
    whole = sdxl()
    for prefix in (UNET, VAE, XL_CLIP, XL_OPEN_CLIP):
        name = max(name for name in whole if name.startswith(prefix) and name.endswith(".bias"))
        path = written({key: value for key, value in whole.items() if key != name}, tmp_path / "model.safetensors")
        with pytest.raises(CheckpointError, match="is missing"):
            load_pipeline(path)
