"""The configuration of a checkpoint's networks, inferred from the shapes of its weights.

Shapes do not determine the number of attention heads, the parameterisation, and the noise schedule. These come from the .yaml
beside the file if there is one, and are otherwise those of the released models of the same family.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ov_backend.checkpoint.companion_files import LINEAR_END, LINEAR_START, companion, read_text_config, read_yaml
from ov_backend.checkpoint.header import CLIP, OPEN_CLIP, UNET, VAE, XL_CLIP, XL_OPEN_CLIP, Header, given_path, read_header
from ov_backend.core.errors import CheckpointError

Shapes = Mapping[str, tuple[int, ...]]

HEADS_SD1 = 8
HEAD_CHANNELS = 64
GROUPS = 32
#: Bounds of any network of these families, several times as large as the largest: sides of a weight, and counts.
LARGEST_SIDE, MOST_LEVELS, MOST_LAYERS = 1 << 20, 8, 128
SCALE = {"sd1": 0.18215, "sd2": 0.18215, "sdxl": 0.13025}
SIZE = {"sd1": 64, "sd2": 64, "sdxl": 128}


@dataclass(frozen=True)
class TextConfig:
    """One text encoder: its prefix and layout in the file, and the arguments of its CLIPTextConfig."""

    prefix: str
    open_clip: bool
    projection: bool
    config: dict[str, Any]


@dataclass(frozen=True)
class Configuration:
    """The arguments for diffusers' and transformers' configurations of all parts of a pipeline.

    The family is "sd1", "sd2" or "sdxl"; ``prediction`` is "epsilon" or "v_prediction", or "" if neither shapes nor .yaml
    determine it.
    """

    family: str
    unet: dict[str, Any]
    vae: dict[str, Any]
    texts: tuple[TextConfig, ...]
    scheduler: dict[str, Any]
    prediction: str

    @property
    def timesteps(self) -> int:
        """The number of steps of noise that the checkpoint was trained with."""
        return int(self.scheduler["num_train_timesteps"])

    @property
    def trained_side(self) -> int:
        """The side in pixels of the square picture that the checkpoint was trained for."""
        return int(self.unet["sample_size"]) << (len(self.vae["block_out_channels"]) - 1)


def read_configuration(path: Path) -> tuple[Header, Configuration]:
    """The header and the configuration of a checkpoint file; no weight is read, and PyTorch is not needed.

    Raises:
        CheckpointError: the file is no checkpoint of a known architecture.
    """
    path = given_path(path)
    header = read_header(path)
    return header, configuration(header, read_yaml(path), companion(path, "config.json"))


def configuration(header: Header, yaml: Mapping[str, Any], companion: Path | None = None) -> Configuration:
    """Infer the configuration from names and shapes.

    ``yaml`` is ``model.params`` of the .yaml beside the file, or empty; ``companion`` a ``config.json`` of the first text
    encoder.

    Raises:
        CheckpointError: the shapes are not those of a known architecture.
    """
    try:
        _check_bounds(header)
        size = yaml.get("image_size", SIZE[header.family])
        unet = _unet(header, _params(yaml, "unet_config", "network_config"), size)
        vae = _vae(header.under(VAE), yaml.get("scale_factor", SCALE[header.family]))
        texts = _texts(header, read_text_config(companion))
        return Configuration(header.family, unet, vae, texts, _scheduler(yaml), _prediction(header, yaml))
    except (KeyError, IndexError) as error:
        raise unknown_architecture(header, f"it has no weight {error}") from error
    except CheckpointError:
        raise
    except (TypeError, ValueError, AttributeError, StopIteration, ArithmeticError) as error:
        raise unknown_architecture(header, str(error)) from error


def _check_bounds(header: Header) -> None:
    """Refuse what no network of these families has, before anything is made as large as the shapes say."""
    prefixes = (UNET, VAE, CLIP, OPEN_CLIP, XL_CLIP, XL_OPEN_CLIP)
    for name, shape in header.shapes.items():
        if name.startswith(prefixes) and (len(shape) > 5 or any(not 1 <= size <= LARGEST_SIDE for size in shape)):
            raise ValueError(f"{name[:100]!r} is {list(shape[:6])}, and a side must be from 1 to {LARGEST_SIDE}")


def _bounded(count: int, most: int, what: str) -> int:
    if not 1 <= count <= most:
        raise ValueError(f"it has {count} {what}, and 1 to {most} are known")
    return count


def unknown_architecture(header: Header, reason: str) -> CheckpointError:
    """The error for a file of other networks, as a sentence."""
    return CheckpointError(
        f"{header.path.name} has an unknown architecture ({reason}); Stable Diffusion 1, 2 and XL are known."
    )


def _params(yaml: Mapping[str, Any], *names: str) -> Mapping[str, Any]:
    return next((dict(yaml[name].get("params") or {}) for name in names if name in yaml), {})


# ---------------------------------------------------------------- the UNet


def _unet(header: Header, params: Mapping[str, Any], size: int) -> dict[str, Any]:
    """The UNet's configuration; ``size`` is that of the latents (the original does not use the one in the UNet's params)."""
    shapes = header.under(UNET)
    channels, inputs = shapes["input_blocks.0.0.weight"][:2]
    if inputs != 4:
        kind = "an inpainting checkpoint" if inputs == 9 else "a checkpoint that is guided by a picture"
        what = f"{header.path.name} is {kind}, whose UNet takes {inputs} channels"
        raise CheckpointError(f"{what}; give a text-to-image one here, or use this one in the WebUI or in Python.")
    levels = _levels(shapes)
    _bounded(len(levels), MOST_LEVELS, "levels")
    _bounded(max(map(len, levels)), MOST_LAYERS, "blocks in a level")
    layers = {len(level) for level in levels}
    if len(layers) != 1 or channels % GROUPS:
        raise ValueError("its levels differ in their number of blocks" if len(layers) != 1 else f"{channels} channels")
    depths = [level[0][1] for level in levels]
    _bounded(max([1, *depths]), MOST_LAYERS, "transformer blocks")
    if any(depth != level[0][1] for level in levels for _, depth in level) or not any(depths):
        raise ValueError("attention differs within a level")
    widths = [level[0][0] for level in levels]
    attention = next(name for name in shapes if name.endswith(".transformer_blocks.0.attn2.to_k.weight"))
    config: dict[str, Any] = {
        "in_channels": 4,
        "out_channels": shapes["out.2.weight"][0],
        "sample_size": size,
        "block_out_channels": widths,
        "layers_per_block": layers.pop(),
        "down_block_types": ["CrossAttnDownBlock2D" if depth else "DownBlock2D" for depth in depths],
        "up_block_types": ["CrossAttnUpBlock2D" if depth else "UpBlock2D" for depth in reversed(depths)],
        "transformer_layers_per_block": [depth or 1 for depth in depths],
        "cross_attention_dim": shapes[attention][1],
        "use_linear_projection": len(shapes["middle_block.1.proj_in.weight"]) == 2,
        # the number of heads of each level, in spite of the name in diffusers
        "attention_head_dim": _heads(header.family, widths, depths, params),
    }
    if _depth(shapes, "middle_block.1") != config["transformer_layers_per_block"][-1]:
        raise ValueError("the middle block is deeper than the last level")
    if "label_emb.0.0.weight" in shapes:
        config |= _added(header, shapes["label_emb.0.0.weight"][1])
    return config


def _levels(shapes: Shapes) -> list[list[tuple[int, int]]]:
    """Channels and number of transformer blocks of every residual block of the downward half, by level."""
    levels: list[list[tuple[int, int]]] = [[]]
    for i in range(1, len(shapes)):
        if f"input_blocks.{i}.0.op.weight" in shapes:
            levels.append([])
        elif f"input_blocks.{i}.0.out_layers.3.weight" in shapes:
            levels[-1].append((shapes[f"input_blocks.{i}.0.out_layers.3.weight"][0], _depth(shapes, f"input_blocks.{i}.1")))
        else:
            return levels
    return levels


def _depth(shapes: Shapes, block: str) -> int:
    start = f"{block}.transformer_blocks."
    return len({name.removeprefix(start).split(".")[0] for name in shapes if name.startswith(start)})


def _heads(family: str, widths: Sequence[int], depths: Sequence[int], params: Mapping[str, Any]) -> list[int]:
    """Attention heads per level."""
    heads, channels = params.get("num_heads", -1), params.get("num_head_channels", -1)
    if heads == channels == -1:
        heads, channels = (HEADS_SD1, -1) if family == "sd1" else (-1, HEAD_CHANNELS)
    counts = [width // channels if channels != -1 else heads for width in widths]
    for width, count, depth in zip(widths, counts, depths):
        if depth and (count < 1 or width % count):
            given = next((name for name in ("num_head_channels", "num_heads") if params.get(name, -1) != -1), None)
            if given is not None:
                raise ValueError(f"its .yaml says {given}: {params[given]}, but a level has {width} channels; correct it there")
            raise ValueError(f"{width} channels do not divide into its attention heads; put its .yaml beside it")
    return counts


def _added(header: Header, width: int) -> dict[str, Any]:
    """SDXL's second conditioning: pooled text, and six numbers on the picture's size and crop, embedded in 256 values each."""
    pooled = header.shapes.get(f"{XL_OPEN_CLIP}text_projection", (0, 0))[1]
    if header.family != "sdxl" or width != pooled + 6 * 256:
        raise ValueError(f"its UNet takes {width} added values")
    return {
        "addition_embed_type": "text_time",
        "addition_time_embed_dim": 256,
        "projection_class_embeddings_input_dim": width,
    }


# ---------------------------------------------------------------- the VAE


def _vae(shapes: Shapes, scale: float) -> dict[str, Any]:
    widths: list[int] = []
    while (name := f"encoder.down.{len(widths)}.block.0.conv2.weight") in shapes:
        widths.append(shapes[name][0])
    _bounded(len(widths), MOST_LEVELS, "levels in its VAE")
    layers = len([n for n in shapes if n.startswith("encoder.down.0.block.") and n.endswith(".conv2.weight")])
    if not widths or any(".attn." in n and (".down." in n or ".up." in n) for n in shapes) or any(w % GROUPS for w in widths):
        raise ValueError("its VAE is of another kind")
    return {
        "in_channels": 3,
        "out_channels": shapes["decoder.conv_out.weight"][0],
        "latent_channels": shapes["post_quant_conv.weight"][1],
        "block_out_channels": widths,
        "layers_per_block": layers,
        "down_block_types": ["DownEncoderBlock2D"] * len(widths),
        "up_block_types": ["UpDecoderBlock2D"] * len(widths),
        "scaling_factor": float(scale),
        "sample_size": 256,
    }


# ---------------------------------------------------------------- the text encoders


def _texts(header: Header, companion: Mapping[str, Any]) -> tuple[TextConfig, ...]:
    if header.family == "sd1":
        return (_clip(header, CLIP, companion),)
    if header.family == "sd2":
        return (_open_clip(header, OPEN_CLIP, skip=1, projection=False),)
    return _clip(header, XL_CLIP, companion), _open_clip(header, XL_OPEN_CLIP, skip=0, projection=True)


def _clip(header: Header, prefix: str, companion: Mapping[str, Any]) -> TextConfig:
    shapes = header.under(prefix)
    start = "text_model." if any(name.startswith("text_model.") for name in shapes) else ""
    vocabulary, width = shapes[f"{start}embeddings.token_embedding.weight"]
    config = {
        **_text_config(width, vocabulary, shapes[f"{start}embeddings.position_embedding.weight"][0]),
        "intermediate_size": shapes[f"{start}encoder.layers.0.mlp.fc1.weight"][0],
        "num_hidden_layers": _count(shapes, f"{start}encoder.layers."),
        "hidden_act": companion.get("hidden_act", "quick_gelu"),
        "projection_dim": width,
    }
    if companion.get("hidden_size") == width:
        config["num_attention_heads"] = companion["num_attention_heads"]
    return TextConfig(prefix, False, False, _checked(config))


def _open_clip(header: Header, prefix: str, skip: int, projection: bool) -> TextConfig:
    """``skip``: number of last layers to leave out. SD2 does not use its last one, and the diffusers pipeline cannot skip it."""
    shapes = header.under(prefix)
    vocabulary, width = shapes["token_embedding.weight"]
    config = {
        **_text_config(width, vocabulary, shapes["positional_embedding"][0]),
        "intermediate_size": shapes["transformer.resblocks.0.mlp.c_fc.weight"][0],
        "num_hidden_layers": _count(shapes, "transformer.resblocks.") - skip,
        "hidden_act": "gelu",
        "projection_dim": shapes["text_projection"][1] if projection else width,
    }
    return TextConfig(prefix, True, projection, _checked(config))


def _text_config(width: int, vocabulary: int, positions: int) -> dict[str, Any]:
    return {
        "hidden_size": width,
        "vocab_size": vocabulary,
        "max_position_embeddings": positions,
        "num_attention_heads": max(1, width // HEAD_CHANNELS),
        "bos_token_id": 49406,
        "eos_token_id": 49407,
        "pad_token_id": 49407,
    }


def _checked(config: dict[str, Any]) -> dict[str, Any]:
    if config["hidden_size"] % config["num_attention_heads"]:
        raise ValueError(f"a text encoder of {config['hidden_size']} channels has no known number of heads")
    return config


def _count(shapes: Shapes, start: str) -> int:
    layers = {name.removeprefix(start).split(".")[0] for name in shapes if name.startswith(start)}
    return _bounded(len(layers), MOST_LAYERS, "layers in a text encoder")


# ---------------------------------------------------------------- the noise schedule


def _scheduler(yaml: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "num_train_timesteps": yaml.get("timesteps", 1000),
        "beta_start": yaml.get("linear_start", LINEAR_START),
        "beta_end": yaml.get("linear_end", LINEAR_END),
        "beta_schedule": "scaled_linear",
        "steps_offset": 1,
    }


def _prediction(header: Header, yaml: Mapping[str, Any]) -> str:
    denoiser = yaml.get("denoiser_config", {})
    scaling = _params(yaml, "denoiser_config").get("scaling_config") or {}
    names = [each.get("target", "") for each in (denoiser, scaling)]
    if "v_pred" in header.shapes or yaml.get("parameterization") == "v" or any("VScaling" in name for name in names):
        return "v_prediction"
    return "" if header.family == "sd2" and not yaml else "epsilon"
