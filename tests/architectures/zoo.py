"""Real architectures at small size, with random weights: name -> (module, call's arguments by name)."""

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
    lambda t: t.OPTConfig(
        vocab_size=99,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        ffn_dim=37,
        word_embed_proj_dim=32,
        use_cache=False,
        max_position_embeddings=64,
    ),
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
    lambda t: t.CLIPVisionConfig(
        hidden_size=32, intermediate_size=37, num_hidden_layers=2, num_attention_heads=4, image_size=32, patch_size=8
    ),
    "CLIPVisionModel",
    pixel_values=lambda: image(32),
)
_encoder(
    "vit",
    lambda t: t.ViTConfig(
        hidden_size=32, intermediate_size=37, num_hidden_layers=2, num_attention_heads=4, image_size=32, patch_size=8
    ),
    "ViTModel",
    pixel_values=lambda: image(32),
)
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


# --- diffusers -------------------------------------------------------------------------------------------------------


def _diffusers(name: str) -> Callable[[Callable[[Any], Made]], None]:
    def keep(make: Callable[[Any], Made]) -> None:
        def made() -> Made:
            import diffusers

            return make(diffusers)

        ZOO[f"diffusers/{name}"] = made

    return keep


_UNET = {
    "sample_size": 8,
    "block_out_channels": (32, 64),
    "layers_per_block": 1,
    "attention_head_dim": 8,
    "norm_num_groups": 8,
    "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"),
    "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D"),
    "cross_attention_dim": 32,
}


def _latents(channels: int = 4, size: int = 8) -> torch.Tensor:
    return torch.randn(2, channels, size, size)


@_diffusers("unet_sd15")
def _unet(d: Any) -> Made:
    call = {"sample": _latents(), "timestep": torch.tensor([3, 7]), "encoder_hidden_states": torch.randn(2, 7, 32)}
    return d.UNet2DConditionModel(**_UNET), {**call, "return_dict": False}


@_diffusers("unet_sd2_linear_projection")
def _unet2(d: Any) -> Made:
    call = {"sample": _latents(), "timestep": torch.tensor([3, 7]), "encoder_hidden_states": torch.randn(2, 7, 32)}
    return d.UNet2DConditionModel(**{**_UNET, "use_linear_projection": True, "attention_head_dim": (4, 8)}), call


@_diffusers("unet_sdxl")
def _unet_xl(d: Any) -> Made:
    added = {"addition_embed_type": "text_time", "addition_time_embed_dim": 8, "projection_class_embeddings_input_dim": 80}
    call = {"sample": _latents(), "timestep": torch.tensor([3, 7]), "encoder_hidden_states": torch.randn(2, 7, 32)}
    conditions = {"text_embeds": torch.randn(2, 32), "time_ids": torch.randint(0, 9, (2, 6)).float()}
    blocks = {"transformer_layers_per_block": (1, 2), "use_linear_projection": True}
    return d.UNet2DConditionModel(**{**_UNET, **added, **blocks}), {**call, "added_cond_kwargs": conditions, "return_dict": False}


@_diffusers("controlnet")
def _controlnet(d: Any) -> Made:
    given = {name: value for name, value in _UNET.items() if name not in ("sample_size", "up_block_types")}
    call = {"sample": _latents(), "timestep": torch.tensor([3, 7]), "encoder_hidden_states": torch.randn(2, 7, 32)}
    net = d.ControlNetModel(**given, conditioning_embedding_out_channels=(16, 32))
    return net, {**call, "controlnet_cond": torch.rand(2, 3, 16, 16), "return_dict": False}


@_diffusers("unet_unconditional")
def _unet_plain(d: Any) -> Made:
    given = {
        "sample_size": 8,
        "block_out_channels": (32, 64),
        "layers_per_block": 1,
        "norm_num_groups": 8,
        "attention_head_dim": 8,
    }
    blocks = {"down_block_types": ("DownBlock2D", "AttnDownBlock2D"), "up_block_types": ("AttnUpBlock2D", "UpBlock2D")}
    return d.UNet2DModel(**given, **blocks), {"sample": _latents(3), "timestep": torch.tensor([3, 7]), "return_dict": False}


def _vae(d: Any) -> torch.nn.Module:
    blocks = {"down_block_types": ("DownEncoderBlock2D",) * 2, "up_block_types": ("UpDecoderBlock2D",) * 2}
    return d.AutoencoderKL(block_out_channels=(16, 32), norm_num_groups=8, latent_channels=4, **blocks)


@_diffusers("autoencoder_kl")
def _kl(d: Any) -> Made:
    return _vae(d), {"sample": image(16), "return_dict": False}


@_diffusers("autoencoder_kl_decoder")
def _kl_decoder(d: Any) -> Made:
    return _vae(d).decoder, {"sample": _latents()}


@_diffusers("autoencoder_tiny")
def _tiny(d: Any) -> Made:
    widths = {"encoder_block_out_channels": (16, 16), "decoder_block_out_channels": (16, 16)}
    blocks = {"num_encoder_blocks": (1, 1), "num_decoder_blocks": (1, 1)}
    return d.AutoencoderTiny(**widths, **blocks, latent_channels=4), {"sample": image(16), "return_dict": False}


@_diffusers("transformer_sd3")
def _sd3(d: Any) -> Made:
    net = d.SD3Transformer2DModel(
        sample_size=8,
        patch_size=2,
        in_channels=4,
        out_channels=4,
        num_layers=2,
        attention_head_dim=8,
        num_attention_heads=4,
        joint_attention_dim=32,
        caption_projection_dim=32,
        pooled_projection_dim=16,
        pos_embed_max_size=8,
    )
    call = {"hidden_states": _latents(), "encoder_hidden_states": torch.randn(2, 7, 32), "pooled_projections": torch.randn(2, 16)}
    return net, {**call, "timestep": torch.tensor([3, 7]), "return_dict": False}


@_diffusers("transformer_flux")
def _flux(d: Any) -> Made:
    net = d.FluxTransformer2DModel(
        patch_size=1,
        in_channels=4,
        num_layers=1,
        num_single_layers=1,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=32,
        pooled_projection_dim=32,
        axes_dims_rope=(4, 4, 8),
    )
    call = {
        "hidden_states": torch.randn(1, 16, 4),
        "encoder_hidden_states": torch.randn(1, 7, 32),
        "timestep": torch.tensor([1.0]),
    }
    batch = (1,) if d.__version__.startswith("0.30.") else ()  # positions had a batch of their own at first
    places = {"img_ids": torch.randn(*batch, 16, 3), "txt_ids": torch.randn(*batch, 7, 3)}
    return net, {**call, **places, "pooled_projections": torch.randn(1, 32), "return_dict": False}


@_diffusers("transformer_dit")
def _dit(d: Any) -> Made:
    net = d.Transformer2DModel(
        num_attention_heads=2,
        attention_head_dim=16,
        in_channels=4,
        out_channels=4,
        sample_size=8,
        patch_size=2,
        num_layers=1,
        norm_type="ada_norm_zero",
        num_embeds_ada_norm=1000,
        norm_elementwise_affine=False,
        activation_fn="gelu-approximate",
    )
    call = {"hidden_states": _latents(), "timestep": torch.tensor([3, 7]), "class_labels": torch.tensor([1, 2])}
    return net, {**call, "return_dict": False}


@_diffusers("vq_model")
def _vq(d: Any) -> Made:
    blocks = {"down_block_types": ("DownEncoderBlock2D",), "up_block_types": ("UpDecoderBlock2D",)}
    return d.VQModel(block_out_channels=(32,), latent_channels=3, norm_num_groups=8, num_vq_embeddings=16, **blocks), {
        "sample": image(16),
        "return_dict": False,
    }
