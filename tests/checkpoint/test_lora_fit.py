"""Whether a LoRA fits is judged by headers as the networks themselves judge it, for every layer of every family."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

pytest.importorskip("diffusers")

from diffusers import AutoencoderKL, UNet2DConditionModel
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTextModelWithProjection

from ov_backend.checkpoint import TOKENIZER, keys, load_pipeline
from ov_backend.checkpoint.header import CLIP, OPEN_CLIP, UNET, VAE, XL_CLIP, XL_OPEN_CLIP
from ov_backend.checkpoint.lora import LoraMix
from ov_backend.checkpoint.lora_file import check_fits
from ov_backend.core.errors import CheckpointError
from tests.helpers.refusals import assert_sentence

if not TOKENIZER.is_dir():
    pytest.skip("the project's own vocabulary is not here", allow_module_level=True)

_WIDTH = 64
_TEXTS = {"sd1": [CLIP], "sd2": [OPEN_CLIP], "sdxl": [XL_CLIP, XL_OPEN_CLIP]}
_CONTEXT = {"sd1": 64, "sd2": 128, "sdxl": 192}
_BLOCKS = {
    "down_block_types": ["CrossAttnDownBlock2D", "DownBlock2D"],
    "up_block_types": ["UpBlock2D", "CrossAttnUpBlock2D"],
    "block_out_channels": [64, 128],
    "layers_per_block": 1,
    "attention_head_dim": 1,
}
_ADDED = {
    "addition_embed_type": "text_time",
    "addition_time_embed_dim": 256,
    "projection_class_embeddings_input_dim": _WIDTH + 6 * 256,
}


def unet_of(family: str) -> UNet2DConditionModel:
    changes: dict[str, Any] = {"use_linear_projection": True} if family != "sd1" else {}
    # the middle block of a UNet has attention as its last level has
    deepest = {"down_block_types": ["DownBlock2D", "CrossAttnDownBlock2D"], "up_block_types": ["CrossAttnUpBlock2D", "UpBlock2D"]}
    more = {**deepest, **_ADDED} if family == "sdxl" else {}
    return UNet2DConditionModel(**{**_BLOCKS, "cross_attention_dim": _CONTEXT[family], **changes, **more})


def text_of(is_open_clip: bool, projects: bool, layers: int) -> Any:
    kind = CLIPTextModelWithProjection if projects else CLIPTextModel
    sizes = {"vocab_size": 49408, "hidden_size": _WIDTH, "intermediate_size": 2 * _WIDTH, "projection_dim": _WIDTH}
    return kind(CLIPTextConfig(**sizes, num_hidden_layers=layers, num_attention_heads=1, max_position_embeddings=77))


def original(prefix: str, module: torch.nn.Module, names: keys.Names) -> dict[str, torch.Tensor]:
    """The weights of a network in the original layout, as zeros."""
    tensors: dict[str, torch.Tensor] = {}
    for name, weight in module.named_parameters():
        key, _, third = names(name).partition("#")
        shape = (3 * weight.shape[0], *weight.shape[1:]) if third else weight.shape
        tensors[prefix + key] = torch.zeros(shape, dtype=torch.bfloat16)
    return tensors


def write_checkpoint(path: Path, family: str) -> Path:
    unet, vae = unet_of(family), AutoencoderKL(block_out_channels=[32])
    tensors = original(UNET, unet, keys.unet_names(unet.config)) | original(VAE, vae, keys.vae_names(1))
    for prefix in _TEXTS[family]:
        is_open_clip = prefix in (OPEN_CLIP, XL_OPEN_CLIP)
        text = text_of(is_open_clip, prefix == XL_OPEN_CLIP, 3 if prefix == OPEN_CLIP else 2)
        tensors |= original(prefix, text, keys.open_clip_name if is_open_clip else keys.clip_name)
    save_file(tensors, path)
    return path


def layers_of(pipe: Any) -> dict[str, torch.Tensor]:
    """Every weight that a LoRA can change by its name in kohya's layout."""
    networks = {"lora_unet_": pipe.unet, "lora_te_": pipe.text_encoder}
    if hasattr(pipe, "text_encoder_2"):
        networks = {"lora_unet_": pipe.unet, "lora_te1_": pipe.text_encoder, "lora_te2_": pipe.text_encoder_2}
    layers = {}
    for prefix, network in networks.items():
        for name, module in network.named_modules():
            if isinstance(module, (torch.nn.Linear, torch.nn.Conv2d)):
                weight = f"{name}.weight" if prefix == "lora_unet_" else keys.clip_name(f"{name}.weight")
                layers[prefix + weight.removesuffix(".weight").replace(".", "_")] = module.weight
    return layers


def write_lora(path: Path, layers: dict[str, torch.Tensor]) -> Path:
    """A LoRA of rank 2 for these layers, which changes nothing."""
    tensors = {}
    for name, weight in layers.items():
        tensors[f"{name}.lora_down.weight"] = torch.zeros(2, *weight.shape[1:])
        tensors[f"{name}.lora_up.weight"] = torch.zeros(weight.shape[0], 2, *[1] * (weight.ndim - 2))
    save_file(tensors, path)
    return path


@pytest.fixture(scope="module")
def families(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Any, Path]]:
    """A checkpoint of each family, its pipeline, and a LoRA of every layer."""
    folder, made = tmp_path_factory.mktemp("families"), {}
    for family in _TEXTS:
        checkpoint = write_checkpoint(folder / f"{family}.safetensors", family)
        pipe = load_pipeline(checkpoint)
        made[family] = checkpoint, pipe, write_lora(folder / f"{family}-lora.safetensors", layers_of(pipe))
    return made


@pytest.mark.parametrize("family", _TEXTS)
def test_every_layer_of_a_family_fits_it_in_both_layouts(
    families: dict[str, tuple[Path, Any, Path]], family: str, tmp_path: Path
) -> None:
    checkpoint, pipe, lora = families[family]
    check_fits(lora, checkpoint)
    assert LoraMix(pipe).apply([(lora, 1.0)])
    names = keys.unet_names(pipe.unet.config)
    dotted = {f"{name}.weight": module.weight for name, module in pipe.unet.named_modules() if hasattr(module, "weight")}
    layers = {names(name).removesuffix(".weight"): weight for name, weight in dotted.items() if weight.ndim > 1}
    flat = {f"lora_unet_{name.replace('.', '_')}": weight for name, weight in layers.items()}
    other = write_lora(tmp_path / "original.safetensors", flat)
    check_fits(other, checkpoint)
    assert LoraMix(pipe).apply([(other, 1.0)])


@pytest.mark.parametrize("family", _TEXTS)
@pytest.mark.parametrize("other", _TEXTS)
def test_a_lora_of_another_family_is_refused_by_both_in_the_same_words(
    families: dict[str, tuple[Path, Any, Path]], family: str, other: str
) -> None:
    if family == other:
        return
    (checkpoint, pipe, _), (_, _, lora) = families[family], families[other]
    with pytest.raises(CheckpointError) as by_headers:
        check_fits(lora, checkpoint)
    with pytest.raises(CheckpointError) as by_networks:
        LoraMix(pipe).apply([(lora, 1.0)])
    assert_sentence(str(by_headers.value))
    assert str(by_headers.value) == str(by_networks.value)


NAME = "lora_unet_down_blocks_0_resnets_0_conv1"
BAD = {
    "one half": {f"{NAME}.lora_down.weight": torch.zeros(2, 64, 3, 3)},
    "two ranks": {f"{NAME}.lora_down.weight": torch.zeros(2, 64, 3, 3), f"{NAME}.lora_up.weight": torch.zeros(64, 3, 1, 1)},
    "no rank": {f"{NAME}.lora_down.weight": torch.zeros(0, 64, 3, 3), f"{NAME}.lora_up.weight": torch.zeros(64, 0, 1, 1)},
    "too narrow": {f"{NAME}.lora_down.weight": torch.zeros(2, 63, 3, 3), f"{NAME}.lora_up.weight": torch.zeros(64, 2, 1, 1)},
    "no layer": {"lora_unet_none.lora_down.weight": torch.zeros(2, 64), "lora_unet_none.lora_up.weight": torch.zeros(64, 2)},
    "no network": {"x.lora_down.weight": torch.zeros(2, 64), "x.lora_up.weight": torch.zeros(64, 2)},
    "alpha alone": {f"{NAME}.alpha": torch.zeros(1)},
    "scalars": {f"{NAME}.lora_down.weight": torch.zeros(()), f"{NAME}.lora_up.weight": torch.zeros(())},
}


@pytest.mark.parametrize("tensors", BAD.values(), ids=BAD)
def test_halves_that_make_no_weight_of_the_checkpoint_are_refused(
    families: dict[str, tuple[Path, Any, Path]], tensors: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    save_file(tensors, tmp_path / "x.safetensors")
    with pytest.raises(CheckpointError) as refused:
        check_fits(tmp_path / "x.safetensors", families["sd1"][0])
    assert_sentence(str(refused.value))
