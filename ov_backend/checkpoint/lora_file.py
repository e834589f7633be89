"""What a LoRA's file changes, and whether that fits a checkpoint, by the headers of both files; needs no PyTorch.

What is refused here, :mod:`ov_backend.checkpoint.lora` refuses too, once the networks are there.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from ov_backend.checkpoint import keys
from ov_backend.checkpoint.config import TextConfig, read_configuration
from ov_backend.checkpoint.header import UNET, Header, has_unet, read_shapes
from ov_backend.core.errors import CheckpointError

EXPECTED_LORA = "a LoRA as a .safetensors file"
#: The ends of a weight's name in either layout, and the part of the layer that it is.
PARTS = {
    "lora_down.weight": "down",
    "lora_up.weight": "up",
    "lora_A.weight": "down",
    "lora_B.weight": "up",
    "lora.down.weight": "down",
    "lora.up.weight": "up",
    "alpha": "alpha",
}
#: Prefixes of diffusers' layout, and kohya's for the same network.
_DIFFUSERS = {"unet.": "lora_unet_", "text_encoder.": "lora_te_", "text_encoder_2.": "lora_te2_"}
LAYER = re.compile(rf"(.+)\.({'|'.join(map(re.escape, PARTS))})")


#: Shapes of the parts of a layer, by their names in :data:`PARTS`.
Shapes = Mapping[str, tuple[int, ...]]


def read_layers(path: Path) -> dict[str, Shapes]:
    """The layers that a file changes by kohya's names of them, of each the shapes of its parts; no weight is read.

    Raises:
        CheckpointError: it is no LoRA of a kind that can be used.
    """
    shapes = read_shapes(path, EXPECTED_LORA)
    layers: dict[str, dict[str, tuple[int, ...]]] = {}
    for name, shape in shapes.items():
        if match := LAYER.fullmatch(name):
            layers.setdefault(kohya_name(match[1]), {})[PARTS[match[2]]] = shape
    if has_unet(shapes):
        raise CheckpointError(f"{path.name} is a checkpoint and no LoRA; give {EXPECTED_LORA}.")
    unknown = next((name for name in shapes if not LAYER.fullmatch(name)), None)
    if unknown is not None or not layers:
        what = f"it holds {unknown[:100]!r}" if unknown is not None else "it holds no weight"
        known = "give a LoRA of up and down weights, as kohya's trainer and diffusers write them (no LoHa, LoKr or DoRA)"
        raise CheckpointError(f"{path.name} is no LoRA that can be used: {what}; {known}.")
    return dict(layers)


def kohya_name(layer: str) -> str:
    """The name of a layer as kohya's trainer writes it."""
    prefix = next((prefix for prefix in _DIFFUSERS if layer.startswith(prefix)), "")
    return _DIFFUSERS[prefix] + layer.removeprefix(prefix).replace(".", "_") if prefix else layer


def other_architecture(path: Path, unknown: Sequence[str], count: int) -> CheckpointError:
    """The error for a LoRA of so many layers, of which these are none of the checkpoint's."""
    what = f"{len(unknown)} of its {count} layers fit nowhere, {min(unknown)[:100]!r} for one"
    return CheckpointError(f"{path.name} belongs to another architecture: {what}; give a LoRA of the checkpoint's kind.")


def misfit(path: Path, layer: str, shape: Sequence[int]) -> CheckpointError:
    """The error for a LoRA of which a layer does not fit the weight of this shape."""
    what = f"{layer[:100]!r} does not fit a weight of {list(shape)}"
    return CheckpointError(f"{path.name} cannot be used: {what}; give a LoRA of the checkpoint's kind.")


#: The beginnings of a layer's name whose dots are known in diffusers' layout; what follows is a name without any, or the same
#: in both layouts.
_UNET_BLOCK = re.compile(r"(down|up)_blocks_(\d+)_(resnets|attentions|downsamplers|upsamplers)_(\d+)_(.+)")
_UNET_MIDDLE = re.compile(r"mid_block_(resnets|attentions)_(\d+)_(.+)")
_UNET_EMBEDDING = re.compile(r"(time|add)_embedding_(linear_[12])")
_TEXT_LAYER = re.compile(r"text_model_encoder_layers_(\d+)_(self_attn|mlp)_(.+)")

#: Finds the shape of a weight by the name of its layer without the prefix; None where there is none.
_Find = Callable[[str], "tuple[int, ...] | None"]


def check_fits(path: Path, checkpoint: Path) -> None:
    """Check that every layer of a LoRA is one of a checkpoint's, and of its shape; no weight is read.

    Raises:
        CheckpointError: it is no LoRA that can be used, or of another architecture; or the checkpoint is none.
    """
    header, config = read_configuration(checkpoint)
    unet = _unet(header, keys.unet_names(config.unet))
    texts = [_text(header, text) for text in config.texts]
    networks = {"lora_unet_": unet, "lora_te_": texts[0], "lora_te1_": texts[0], **dict(zip(["lora_te2_"], texts[1:]))}
    layers = read_layers(path)
    found = {name: _found(name, networks) for name in layers}
    unknown = [name for name, shape in found.items() if shape is None]
    if unknown:
        raise other_architecture(path, unknown, len(layers))
    for name, shape in found.items():
        if shape is not None and not _fits(layers[name], shape):
            raise misfit(path, name, shape)


def _found(name: str, networks: dict[str, _Find]) -> tuple[int, ...] | None:
    prefix = next((each for each in networks if name.startswith(each)), None)
    return networks[prefix](name.removeprefix(prefix)) if prefix is not None else None


def _fits(parts: Shapes, shape: tuple[int, ...]) -> bool:
    """Whether the product of a layer's two halves has as many values as a weight."""
    down, up = parts.get("down", ()), parts.get("up", ())
    if not down or not up or down[0] == 0 or math.prod(up[1:]) != down[0]:
        return False
    return up[0] * math.prod(down[1:]) == math.prod(shape)


def _unet(header: Header, original: keys.Names) -> _Find:
    shapes = _flat(header, UNET)

    def find(name: str) -> tuple[int, ...] | None:
        if block := _UNET_BLOCK.fullmatch(name):
            way, number, kind, i, rest = block.groups()
            name = original(f"{way}_blocks.{number}.{kind}.{i}.{rest}.weight")
        elif middle := _UNET_MIDDLE.fullmatch(name):
            name = original("mid_block.{}.{}.{}.weight".format(*middle.groups()))
        elif embedding := _UNET_EMBEDDING.fullmatch(name):
            name = original("{}_embedding.{}.weight".format(*embedding.groups()))
        elif name in ("conv_in", "conv_out"):
            name = original(f"{name}.weight")
        return shapes.get(_without_dots(name))

    return find


def _text(header: Header, text: TextConfig) -> _Find:
    shapes = _flat(header, text.prefix)

    def find(name: str) -> tuple[int, ...] | None:
        if not text.open_clip:
            return shapes.get(name) or shapes.get(name.removeprefix("text_model_"))  # files of 2022 lack this prefix
        layer = _TEXT_LAYER.fullmatch(name)
        dotted = "text_model.encoder.layers.{}.{}.{}".format(*layer.groups()) if layer else name
        key, _, third = keys.open_clip_name(f"{dotted}.weight").partition("#")
        shape = shapes.get(_without_dots(key))
        return (shape[0] // 3, *shape[1:]) if shape and third else shape

    return find


def _flat(header: Header, prefix: str) -> dict[str, tuple[int, ...]]:
    """The shapes under a prefix by their names without dots and without "weight"."""
    return {_without_dots(name): shape for name, shape in header.under(prefix).items() if not name.endswith(".bias")}


def _without_dots(name: str) -> str:
    return name.removesuffix(".weight").replace(".", "_")
