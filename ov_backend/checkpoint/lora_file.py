"""The names in a LoRA's file, by which it is known; needs no PyTorch."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from ov_backend.checkpoint.header import has_unet, read_shapes
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
