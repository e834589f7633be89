"""Checkpoints of other kinds: diffusers reads them with the configuration beside them, offline, and others are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("diffusers", "0.36")  # older ones read other kinds

from safetensors.torch import load_file, save_file

from ov_backend.checkpoint import load_any_pipeline, load_pipeline
from ov_backend.core.errors import CheckpointError
from ov_backend.pipelines.precompile import generator_of
from ov_backend.pipelines.sizes import own_size
from tests.hosts.standalone.checkpoints import write_small_checkpoint

pytestmark = pytest.mark.usefixtures("no_connection")
UNET = "model.diffusion_model."
INPAINTING: dict[str, Any] = {
    "_class_name": "StableDiffusionInpaintPipeline",
    "unet": ["diffusers", "UNet2DConditionModel"],
    "vae": ["diffusers", "AutoencoderKL"],
    "text_encoder": ["transformers", "CLIPTextModel"],
    "tokenizer": ["transformers", "CLIPTokenizer"],
    "scheduler": ["diffusers", "DDIMScheduler"],
    **{part: [None, None] for part in ("safety_checker", "feature_extractor", "image_encoder")},
    "requires_safety_checker": False,
}


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, torch.Tensor], Any]:
    """The tensors of a small checkpoint, and its pipeline."""
    path = write_small_checkpoint(tmp_path_factory.mktemp("original"), vae_levels=2)
    return load_file(str(path)), load_pipeline(path)


@pytest.fixture
def inpainting(original: tuple[dict[str, torch.Tensor], Any], tmp_path: Path) -> Path:
    """A small inpainting checkpoint, and the configuration of its pipeline beside it."""
    tensors, pipe = original
    first = f"{UNET}input_blocks.0.0.weight"
    mask = torch.randn(tensors[first].shape[0], 5, 3, 3, generator=torch.Generator().manual_seed(0)).half()
    path, folder = tmp_path / "model.safetensors", tmp_path / "model"
    save_file({**tensors, first: torch.cat([tensors[first], mask], 1)}, str(path))
    for name in ("unet", "vae", "scheduler"):
        getattr(pipe, name).save_config(folder / name)
    write_json(folder / "unet" / "config.json", {**json.loads((folder / "unet" / "config.json").read_text()), "in_channels": 9})
    pipe.text_encoder.config.save_pretrained(folder / "text_encoder")
    pipe.tokenizer.save_pretrained(folder / "tokenizer")
    write_json(folder / "model_index.json", INPAINTING)
    return path


def write_json(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))


def test_an_inpainting_checkpoint_is_read_and_can_be_precompiled(inpainting: Path, original: tuple[Any, Any]) -> None:
    pipe = load_any_pipeline(inpainting)
    tensors, ours = original
    assert type(pipe).__name__ == "StableDiffusionInpaintPipeline"
    assert pipe.unet.conv_in.weight.shape[1] == 9
    assert torch.equal(pipe.unet.conv_in.weight[:, :4], tensors[f"{UNET}input_blocks.0.0.weight"].float())
    for part in ("vae", "text_encoder"):
        expected = getattr(ours, part).state_dict()
        assert all(torch.equal(value, expected[name]) for name, value in getattr(pipe, part).state_dict().items())
    assert not any(parameter.requires_grad or parameter.dtype is not torch.float32 for parameter in pipe.unet.parameters())
    pipe.set_progress_bar_config(disable=True)
    with torch.no_grad():
        (picture,) = generator_of(pipe)((64, 64, 1)).images
    assert picture.shape == (3, 64, 64)


def test_a_checkpoint_of_a_known_kind_is_read_by_our_loader(tmp_path: Path) -> None:
    path = write_small_checkpoint(tmp_path, vae_levels=2)
    write_json(path.with_suffix("") / "model_index.json", {"_class_name": "StableDiffusionPipeline"})
    assert load_any_pipeline(path).scheduler.config.prediction_type == "v_prediction"  # from our .yaml


REFUSED: list[tuple[Any, str]] = [
    ("{", "is no index of a diffusers pipeline"),
    ([], "is no index of a diffusers pipeline"),
    ({**INPAINTING, "unet": ["os", "system"]}, "neither diffusers' nor transformers'"),
    ({**INPAINTING, "_class_name": "UNet2DConditionModel"}, "which is no pipeline"),
    ({**INPAINTING, "_class_name": "NoSuchPipeline"}, "which is no pipeline"),
    ({**INPAINTING, "unet": ["diffusers", "SD3Transformer2DModel"]}, "diffusers cannot read it"),
]


@pytest.mark.parametrize("index,words", REFUSED, ids=[words for _, words in REFUSED])
def test_a_configuration_that_does_not_fit_is_refused(inpainting: Path, index: Any, words: str) -> None:
    path = inpainting.with_suffix("") / "model_index.json"
    path.write_text(index if isinstance(index, str) else json.dumps(index))
    with pytest.raises(CheckpointError, match=words) as caught:
        load_any_pipeline(inpainting)
    assert "\n" not in str(caught.value)
    assert str(caught.value).endswith(".")


def test_a_pickle_is_never_opened_with_a_configuration_either(inpainting: Path) -> None:
    torch.save({}, inpainting)
    with pytest.raises(CheckpointError, match="is a pickle"):
        load_any_pipeline(inpainting)


def sd3_tensors(layers: int, width: int) -> dict[str, torch.Tensor]:
    """A small diffusion transformer of SD3 under the names of the original file: 16 latent channels, 64 values of text."""

    def linear(name: str, inputs: int, outputs: int) -> dict[str, torch.Tensor]:
        return {f"{name}.weight": torch.randn(outputs, inputs), f"{name}.bias": torch.randn(outputs)}

    tensors = {
        "pos_embed": torch.randn(1, 16, width),
        "x_embedder.proj.weight": torch.randn(width, 16, 2, 2),
        "x_embedder.proj.bias": torch.randn(width),
        **linear("t_embedder.mlp.0", 256, width),
        **linear("t_embedder.mlp.2", width, width),
        **linear("y_embedder.mlp.0", 32, width),
        **linear("y_embedder.mlp.2", width, width),
        **linear("context_embedder", 64, width),
        **linear("final_layer.linear", width, 64),
        **linear("final_layer.adaLN_modulation.1", width, 2 * width),
    }
    for layer in range(layers):
        for side in ("x_block", "context_block"):
            block, is_last = f"joint_blocks.{layer}.{side}", side == "context_block" and layer == layers - 1
            tensors |= linear(f"{block}.attn.qkv", width, 3 * width)
            tensors |= linear(f"{block}.adaLN_modulation.1", width, (2 if is_last else 6) * width)
            if not is_last:
                tensors |= linear(f"{block}.attn.proj", width, width)
                tensors |= {**linear(f"{block}.mlp.fc1", width, 4 * width), **linear(f"{block}.mlp.fc2", 4 * width, width)}
    return {f"{UNET}{name}": tensor for name, tensor in tensors.items()}


def test_an_sd3_checkpoint_without_text_encoders_is_read(original: tuple[Any, Any], tmp_path: Path) -> None:
    from diffusers import FlowMatchEulerDiscreteScheduler, SD3Transformer2DModel

    tensors, pipe = original
    path, folder, width = tmp_path / "sd3.safetensors", tmp_path / "sd3", 16
    vae = {name: tensor for name, tensor in tensors.items() if name.startswith("first_stage_model.")}
    transformer = sd3_tensors(2, width)
    save_file({**transformer, **vae}, str(path))
    config = {"sample_size": 8, "num_layers": 2, "attention_head_dim": 8, "num_attention_heads": 2, "joint_attention_dim": 64}
    config |= {"caption_projection_dim": width, "pooled_projection_dim": 32, "pos_embed_max_size": 4, "in_channels": 16}
    SD3Transformer2DModel(**config).save_config(folder / "transformer")
    FlowMatchEulerDiscreteScheduler().save_config(folder / "scheduler")
    pipe.vae.save_config(folder / "vae")
    parts = {"transformer": "SD3Transformer2DModel", "vae": "AutoencoderKL", "scheduler": "FlowMatchEulerDiscreteScheduler"}
    texts = [f"{kind}{suffix}" for kind in ("text_encoder", "tokenizer") for suffix in ("", "_2", "_3")]
    index = {**{name: ["diffusers", cls] for name, cls in parts.items()}, **{part: [None, None] for part in texts}}
    write_json(folder / "model_index.json", {"_class_name": "StableDiffusion3Pipeline", **index})
    loaded = load_any_pipeline(path)
    assert loaded.text_encoder is None
    assert own_size(loaded) == (16, 16), "8 latents, and a VAE of two levels"
    query = transformer[f"{UNET}joint_blocks.1.x_block.attn.qkv.weight"][:width]
    assert torch.equal(loaded.transformer.transformer_blocks[1].attn.to_q.weight, query)
    with torch.no_grad():
        result = loaded.transformer(torch.randn(1, 16, 8, 8), torch.randn(1, 5, 64), torch.randn(1, 32), torch.tensor([1.0]))
    assert torch.isfinite(result.sample).all()
