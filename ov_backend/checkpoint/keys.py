"""Maps names of weights in diffusers networks to their names in a checkpoint of the original layout.

Each function takes the name of a parameter of a diffusers or transformers network and returns its name in the file. So every
weight that a network needs is looked up, and a missing one is an error.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

_RESNET = {
    "norm1": "in_layers.0",
    "conv1": "in_layers.2",
    "time_emb_proj": "emb_layers.1",
    "norm2": "out_layers.0",
    "conv2": "out_layers.3",
    "conv_shortcut": "skip_connection",
}
_UNET_ENDS = {
    "conv_in": "input_blocks.0.0",
    "time_embedding.linear_1": "time_embed.0",
    "time_embedding.linear_2": "time_embed.2",
    "add_embedding.linear_1": "label_emb.0.0",
    "add_embedding.linear_2": "label_emb.0.2",
    "conv_norm_out": "out.0",
    "conv_out": "out.2",
}
_VAE_PARTS = {
    "conv_norm_out": "norm_out",
    "mid_block.resnets.0": "mid.block_1",
    "mid_block.resnets.1": "mid.block_2",
    "mid_block.attentions.0": "mid.attn_1",
    "conv_shortcut": "nin_shortcut",
    "group_norm": "norm",
    "to_q": "q",
    "to_k": "k",
    "to_v": "v",
    "to_out.0": "proj_out",
}
_OPEN_CLIP = {
    "embeddings.token_embedding.weight": "token_embedding.weight",
    "embeddings.position_embedding.weight": "positional_embedding",
    "final_layer_norm": "ln_final",
    "encoder.layers": "transformer.resblocks",
    "layer_norm1": "ln_1",
    "layer_norm2": "ln_2",
    "mlp.fc1": "mlp.c_fc",
    "mlp.fc2": "mlp.c_proj",
    "self_attn.out_proj": "attn.out_proj",
    "text_projection.weight": "text_projection",
}
_BLOCK = re.compile(r"(down|up)_blocks\.(\d+)\.(resnets|attentions|downsamplers|upsamplers)\.(\d+)\.(.+)")
_MIDDLE = re.compile(r"mid_block\.(resnets|attentions)\.(\d+)\.(.+)")
_VAE_BLOCK = re.compile(r"(down|up)_blocks\.(\d+)\.(resnets|downsamplers|upsamplers)\.(\d+)\.(.+)")

Names = Callable[[str], str]


def _replaced(name: str, table: Mapping[str, str]) -> str:
    """``name`` with every dotted part replaced that is in the table."""
    for part, original in table.items():
        name = re.sub(rf"(^|\.){re.escape(part)}(?=\.|$)", rf"\g<1>{original}", name)
    return name


def unet_names(config: Mapping[str, Any]) -> Names:
    """Names of the weights of a UNet of this configuration (without ``model.diffusion_model.``)."""
    layers = config["layers_per_block"]  # residual blocks of a level in the downward half; the upward half has one more
    stride = layers + 1
    attention_up = [kind.startswith("CrossAttn") for kind in config["up_block_types"]]

    def name(key: str) -> str:
        if match := _MIDDLE.match(key):
            kind, i, rest = match.groups()
            index = 1 if kind == "attentions" else 2 * int(i)
            return f"middle_block.{index}.{_inside(kind, rest)}"
        if not (match := _BLOCK.match(key)):
            return _replaced(key, _UNET_ENDS)
        way, block, kind, i, rest = match.groups()
        first = int(block) * stride + int(i)
        if kind == "downsamplers":
            return f"input_blocks.{(int(block) + 1) * stride}.0.op.{rest.removeprefix('conv.')}"
        if kind == "upsamplers":
            return f"output_blocks.{int(block) * stride + layers}.{1 + attention_up[int(block)]}.{rest}"
        blocks, index = ("input_blocks", first + 1) if way == "down" else ("output_blocks", first)
        return f"{blocks}.{index}.{int(kind == 'attentions')}.{_inside(kind, rest)}"

    return name


def _inside(kind: str, rest: str) -> str:
    return rest if kind == "attentions" else _replaced(rest, _RESNET)


def vae_names(levels: int) -> Names:
    """Names of the VAE's weights (without ``first_stage_model.``); the original counts levels from the outside in both halves."""

    def name(key: str) -> str:
        half, _, rest = key.partition(".")
        if match := _VAE_BLOCK.match(rest):
            way, block, kind, i, inner = match.groups()
            level = int(block) if way == "down" else levels - 1 - int(block)
            part = f"block.{i}" if kind == "resnets" else f"{way}sample"
            rest = f"{way}.{level}.{part}.{inner}"
        return f"{half}.{_replaced(rest, _VAE_PARTS)}"

    return name


def clip_name(key: str) -> str:
    """Name of a weight of transformers' CLIP text model (without the prefix up to ``transformer.``)."""
    return key if key.startswith(("text_model.", "text_projection.")) else f"text_model.{key}"


def open_clip_name(key: str) -> str:
    """Name of a weight of an open_clip text model. Query, key and value are thirds of one matrix there: ``...#0`` to ``#2``."""
    key = _replaced(key.removeprefix("text_model."), _OPEN_CLIP)
    for third, letter in enumerate("qkv"):
        key = re.sub(rf"self_attn\.{letter}_proj\.(weight|bias)$", rf"attn.in_proj_\1#{third}", key)
    return key
