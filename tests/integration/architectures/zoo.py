"""Real architectures at small size, with random weights: name -> (module, call's arguments by name).

diffusers' are in ``zoo_diffusers.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

Made = tuple[torch.nn.Module, dict[str, Any]]
ZOO: dict[str, Callable[[], Made]] = {}


def _add(name: str) -> Callable[[Callable[[], Made]], Callable[[], Made]]:
    def keep(make: Callable[[], Made]) -> Callable[[], Made]:
        ZOO[name] = make
        return make

    return keep


def image(size: int = 64, batch: int = 1) -> torch.Tensor:
    return torch.randn(batch, 3, size, size)


def tokens(length: int = 9, size: int = 99) -> torch.Tensor:
    return torch.randint(1, size, (2, length))


# --- torchvision -----------------------------------------------------------------------------------------------------


def _vision(name: str, size: int = 64, **given: Any) -> None:
    @_add(f"torchvision/{name}")
    def make() -> Made:
        import torchvision.models as models

        return getattr(models, name)(weights=None, num_classes=10, **given), {"x": image(size)}


for _name in (
    "resnet18",
    "mobilenet_v2",
    "mobilenet_v3_small",
    "shufflenet_v2_x0_5",
    "squeezenet1_1",
    "mnasnet0_5",
    "regnet_y_400mf",
):
    _vision(_name)
_vision("alexnet")
_vision("efficientnet_b0")
_vision("convnext_tiny")
_vision("googlenet", aux_logits=False, init_weights=False)
_vision("vgg11_bn", 32)


@_add("torchvision/vit")
def _vit() -> Made:
    from torchvision.models.vision_transformer import VisionTransformer

    return VisionTransformer(32, 8, 2, 2, 32, 64, num_classes=10), {"x": image(32)}


@_add("torchvision/swin")
def _swin() -> Made:
    from torchvision.models.swin_transformer import SwinTransformer

    return SwinTransformer([4, 4], 16, [1, 1], [2, 2], [4, 4], num_classes=10), {"x": image(32)}


# --- timm ------------------------------------------------------------------------------------------------------------


def _timm(name: str, size: int = 32, **given: Any) -> None:
    @_add(f"timm/{name}")
    def make() -> Made:
        import timm

        return timm.create_model(name, pretrained=False, num_classes=10, **given), {"x": image(size)}


_timm("vit_tiny_patch16_224", 32, img_size=32, depth=2)
_timm("mixer_s16_224", 32, img_size=32)
_timm("convmixer_768_32", 32)
_timm("ghostnet_050", 64)
_timm("edgenext_xx_small", 64)


# --- transformers ----------------------------------------------------------------------------------------------------

SMALL = {"vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 37}
PICTURES = {**SMALL, "image_size": 32, "patch_size": 8}


def _encoder(name: str, make_config: Callable[[Any], Any], model: str, **call: Callable[[], torch.Tensor]) -> None:
    @_add(f"transformers/{name}")
    def make() -> Made:
        import transformers

        return getattr(transformers, model)(make_config(transformers)), {key: value() for key, value in call.items()}


_encoder("bert", lambda t: t.BertConfig(**SMALL), "BertModel", input_ids=tokens)
_encoder("roberta", lambda t: t.RobertaConfig(**SMALL, pad_token_id=0), "RobertaModel", input_ids=tokens)
_encoder("electra", lambda t: t.ElectraConfig(**SMALL, embedding_size=32), "ElectraModel", input_ids=tokens)
_encoder("albert", lambda t: t.AlbertConfig(**SMALL, embedding_size=16), "AlbertModel", input_ids=tokens)
_encoder(
    "distilbert",
    lambda t: t.DistilBertConfig(vocab_size=99, dim=32, n_layers=2, n_heads=4, hidden_dim=37),
    "DistilBertModel",
    input_ids=tokens,
)
_encoder(
    "gpt2", lambda t: t.GPT2Config(vocab_size=99, n_embd=32, n_layer=2, n_head=4, use_cache=False), "GPT2Model", input_ids=tokens
)
_encoder(
    "llama", lambda t: t.LlamaConfig(**SMALL, use_cache=False, max_position_embeddings=64), "LlamaForCausalLM", input_ids=tokens
)
_encoder("gpt_neox", lambda t: t.GPTNeoXConfig(**SMALL, use_cache=False), "GPTNeoXModel", input_ids=tokens)
_encoder(
    "opt",
    lambda t: t.OPTConfig(**SMALL, ffn_dim=37, word_embed_proj_dim=32, use_cache=False, max_position_embeddings=64),
    "OPTModel",
    input_ids=tokens,
)
_encoder(
    "t5_encoder",
    lambda t: t.T5Config(vocab_size=99, d_model=32, d_kv=8, d_ff=37, num_layers=2, num_heads=4),
    "T5EncoderModel",
    input_ids=tokens,
)
_encoder(
    "t5",
    lambda t: t.T5Config(vocab_size=99, d_model=32, d_kv=8, d_ff=37, num_layers=2, num_heads=4, use_cache=False),
    "T5ForConditionalGeneration",
    input_ids=tokens,
    decoder_input_ids=tokens,
)
_encoder(
    "clip_text", lambda t: t.CLIPTextConfig(**SMALL, max_position_embeddings=77), "CLIPTextModel", input_ids=lambda: tokens(77)
)
_encoder(
    "clip_text_projection",
    lambda t: t.CLIPTextConfig(**SMALL, projection_dim=16),
    "CLIPTextModelWithProjection",
    input_ids=lambda: tokens(77),
)
_encoder(
    "clip_vision",
    lambda t: t.CLIPVisionConfig(**PICTURES),
    "CLIPVisionModel",
    pixel_values=lambda: image(32),
)
_encoder("vit", lambda t: t.ViTConfig(**PICTURES), "ViTModel", pixel_values=lambda: image(32))
_encoder(
    "whisper",
    lambda t: t.WhisperConfig(
        vocab_size=99,
        d_model=32,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=37,
        decoder_ffn_dim=37,
        num_mel_bins=16,
        max_source_positions=20,
        max_target_positions=20,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
        use_cache=False,
    ),
    "WhisperModel",
    input_features=lambda: torch.randn(2, 16, 40),
    decoder_input_ids=tokens,
)
_encoder(
    "segformer",
    lambda t: t.SegformerConfig(
        depths=[1, 1],
        hidden_sizes=[16, 32],
        num_encoder_blocks=2,
        num_attention_heads=[1, 2],
        sr_ratios=[2, 1],
        patch_sizes=[7, 3],
        strides=[4, 2],
        mlp_ratios=[2, 2],
        decoder_hidden_size=16,
    ),
    "SegformerForSemanticSegmentation",
    pixel_values=image,
)
