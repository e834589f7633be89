"""LoRAs are added to weights as kohya's trainer and diffusers mean it, and taken out to the last bit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

pytest.importorskip("diffusers")

from ov_backend.checkpoint import TOKENIZER, load_pipeline
from ov_backend.checkpoint.lora import LoraMix
from ov_backend.checkpoint.lora_file import read_layers
from ov_backend.core.errors import CheckpointError
from tests.helpers.refusals import assert_sentence
from tests.hosts.standalone.checkpoints import write_small_checkpoint

if not TOKENIZER.is_dir():
    pytest.skip("the project's own vocabulary is not here", allow_module_level=True)

LAYER = "down_blocks.0.attentions.0.transformer_blocks.0.attn1.to_q"
TEXT = "lora_te_text_model_encoder_layers_0_mlp_fc1"


@pytest.fixture(scope="module")
def pipe(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return load_pipeline(write_small_checkpoint(tmp_path_factory.mktemp("checkpoint"), vae_levels=2))


@pytest.fixture
def mix(pipe: Any) -> Iterator[LoraMix]:
    mix = LoraMix(pipe)
    yield mix
    mix.apply([])


def parts(rank: int, outputs: int, inputs: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rank, inputs, generator=generator), torch.randn(outputs, rank, generator=generator)


def write(path: Path, tensors: dict[str, torch.Tensor]) -> Path:
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path)
    return path


def weight_of(pipe: Any) -> torch.nn.Parameter:
    return pipe.unet.get_submodule(LAYER).weight


def names(layout: str) -> tuple[str, str]:
    """The names of the two halves for one layer of the UNet."""
    if layout == "peft":
        return f"unet.{LAYER}.lora_A.weight", f"unet.{LAYER}.lora_B.weight"
    name = {
        "kohya": "lora_unet_" + LAYER.replace(".", "_"),
        "original": "lora_unet_input_blocks_1_1_transformer_blocks_0_attn1_to_q",
    }[layout]
    return f"{name}.lora_down.weight", f"{name}.lora_up.weight"


@pytest.mark.parametrize("layout", ["kohya", "original", "peft"])
def test_a_weight_becomes_the_formula_and_then_itself(pipe: Any, mix: LoraMix, tmp_path: Path, layout: str) -> None:
    weight = weight_of(pipe)
    before = weight.clone()
    down, up = parts(2, *weight.shape)
    path = write(tmp_path / "x.safetensors", dict(zip(names(layout), (down, up))))
    assert mix.apply([(path, 0.5)])
    torch.testing.assert_close(weight, before + 0.5 * up @ down)
    assert not mix.apply([(path, 0.5)]), "nothing changes, so nothing is written"
    assert mix.apply([])
    assert torch.equal(weight, before)


def test_alpha_scales_convolutions_have_kernels_and_several_loras_add_up(pipe: Any, mix: LoraMix, tmp_path: Path) -> None:
    convolution = pipe.unet.down_blocks[0].resnets[0].conv1.weight
    before, linear_before = convolution.clone(), weight_of(pipe).clone()
    outputs, inputs = convolution.shape[:2]
    down, up = torch.randn(4, inputs, 3, 3), torch.randn(outputs, 4, 1, 1)
    name = "lora_unet_down_blocks_0_resnets_0_conv1"
    kernel = write(
        tmp_path / "a.safetensors",
        {f"{name}.lora_down.weight": down, f"{name}.lora_up.weight": up, f"{name}.alpha": torch.tensor(2.0)},
    )
    small_down, small_up = parts(2, *weight_of(pipe).shape)
    linear = write(tmp_path / "b.safetensors", dict(zip(names("kohya"), (small_down, small_up))))
    mix.apply([(kernel, 1.0), (linear, 1.0)])
    expected = before + 0.5 * torch.einsum("or,rikl->oikl", up[:, :, 0, 0], down)
    torch.testing.assert_close(convolution, expected, rtol=1e-4, atol=1e-4)
    mix.apply([(linear, 1.0), (linear, 0.5)])
    assert torch.equal(convolution, before)
    torch.testing.assert_close(weight_of(pipe), linear_before + 1.5 * small_up @ small_down)


def test_the_text_encoder_has_layers_too(pipe: Any, mix: LoraMix, tmp_path: Path) -> None:
    weight = next(w for name, w in pipe.text_encoder.named_parameters() if name.endswith("layers.0.mlp.fc1.weight"))
    before = weight.clone()
    down, up = parts(2, *weight.shape)
    mix.apply([(write(tmp_path / "x.safetensors", {f"{TEXT}.lora_down.weight": down, f"{TEXT}.lora_up.weight": up}), 1.0)])
    torch.testing.assert_close(weight, before + up @ down)


def test_a_change_is_seen_by_the_guards(pipe: Any, mix: LoraMix, tmp_path: Path) -> None:
    weight = weight_of(pipe)
    version = weight._version
    mix.apply([(write(tmp_path / "x.safetensors", dict(zip(names("kohya"), parts(2, *weight.shape)))), 1.0)])
    assert weight._version > version


BAD: list[tuple[dict[str, torch.Tensor], str]] = [
    ({}, "it holds no weight"),
    ({"lora_unet_x.hada_w1_a": torch.zeros(1)}, "no LoHa"),
    ({"x.lora_down.weight": torch.zeros(1), "x.dora_scale": torch.zeros(1)}, "holds 'x.dora_scale'"),
    ({"a.weight": torch.zeros(1)}, "holds 'a.weight'"),
]


@pytest.mark.parametrize("tensors,words", BAD, ids=[words for _, words in BAD])
def test_what_is_no_lora_is_refused_before_it_is_read(tmp_path: Path, tensors: dict[str, torch.Tensor], words: str) -> None:
    with pytest.raises(CheckpointError, match=words) as refused:
        read_layers(write(tmp_path / "x.safetensors", tensors))
    assert_sentence(str(refused.value))


def test_a_lora_of_another_architecture_is_refused_and_leaves_the_weights(pipe: Any, mix: LoraMix, tmp_path: Path) -> None:
    before = weight_of(pipe).clone()
    down, up = parts(2, *before.shape)
    down_name, up_name = names("kohya")
    wrong = [
        {"lora_unet_none.lora_down.weight": down, "lora_unet_none.lora_up.weight": up},
        {down_name: down[:, :-1], up_name: up},
        {down_name: down},
        {down_name: torch.zeros(0, down.shape[1]), up_name: torch.zeros(up.shape[0], 0), "lora_unet_x.alpha": torch.zeros(1)},
    ]
    for tensors in wrong:
        with pytest.raises(CheckpointError) as refused:
            mix.apply([(write(tmp_path / "x.safetensors", tensors), 1.0)])
        assert_sentence(str(refused.value))
    assert torch.equal(weight_of(pipe), before)
