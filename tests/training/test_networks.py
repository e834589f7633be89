"""The demo checkpoint fits the ldm classes of its yaml, and the training's networks equal the originals."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file

pytest.importorskip("ldm")
pytest.importorskip("yaml")

from training import clip_text, networks
from training.lora import diffusers_name
from training.paths import CHECKPOINT_DIR, TOKENIZER_DIR


@pytest.fixture(scope="module")
def weights() -> dict[str, torch.Tensor]:
    return load_file(CHECKPOINT_DIR / "fluent-sd.safetensors")


def part(weights: dict[str, torch.Tensor], prefix: str) -> dict[str, torch.Tensor]:
    return {name.removeprefix(prefix): tensor.float() for name, tensor in weights.items() if name.startswith(prefix)}


def test_ldm_classes_take_every_weight(weights: dict[str, torch.Tensor]) -> None:
    unet, vae = networks.build_unet(), networks.build_vae()
    unet.load_state_dict(part(weights, "model.diffusion_model."), strict=True)
    vae.load_state_dict(part(weights, "first_stage_model."), strict=True)
    assert all(torch.isfinite(tensor).all() for tensor in weights.values())


def test_text_encoder_is_transformers_clip(weights: dict[str, torch.Tensor]) -> None:
    transformers = pytest.importorskip("transformers")
    reference = transformers.CLIPTextModel(transformers.CLIPTextConfig.from_pretrained(str(TOKENIZER_DIR))).eval()
    ours = clip_text.build(0)
    state = {k: v for k, v in part(weights, "cond_stage_model.transformer.").items() if "position_ids" not in k}
    ours.load_state_dict(state)
    inner = getattr(reference, "text_model", reference)
    inner.load_state_dict({k.removeprefix("text_model."): v for k, v in state.items()}, strict=False)
    ids = torch.tensor([[49406, 320, 2368, *[49407] * 74]])
    with torch.no_grad():
        assert torch.allclose(ours(ids), reference(ids).last_hidden_state, atol=1e-4)


def test_fused_attention_equals_that_of_ldm(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = networks.CrossAttention(query_dim=32, context_dim=16, heads=4, dim_head=8)
    x, context = torch.randn(2, 10, 32), torch.randn(2, 5, 16)
    expected = layer(x, context)
    monkeypatch.setattr(networks.CrossAttention, "forward", networks.fused_attention)
    assert torch.allclose(layer(x, context), expected, atol=1e-5)


@pytest.mark.parametrize(
    ("ldm", "diffusers"),
    [
        ("input_blocks.5.1.proj_in", "down_blocks.1.attentions.1.proj_in"),
        ("middle_block.1.proj_out", "mid_block.attentions.0.proj_out"),
        ("output_blocks.8.1.transformer_blocks.0.ff.net.2", "up_blocks.2.attentions.2.transformer_blocks.0.ff.net.2"),
    ],
)
def test_lora_names(ldm: str, diffusers: str) -> None:
    assert diffusers_name(ldm) == diffusers
