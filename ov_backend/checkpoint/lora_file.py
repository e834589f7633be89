"""The names in a LoRA's file, by which it is known; needs no PyTorch."""

from __future__ import annotations

import re
from pathlib import Path

from ov_backend.checkpoint.header import has_unet, read_shapes
from ov_backend.errors import CheckpointError

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
LAYER = re.compile(rf"(.+)\.({'|'.join(map(re.escape, PARTS))})")


def check_lora(path: Path) -> int:
    """Check a file's names without reading weights; returns the number of layers that it changes.

    Raises:
        CheckpointError: it is no LoRA of a kind that can be used.
    """
    shapes = read_shapes(path, EXPECTED_LORA)
    layers = {match[1] for match in map(LAYER.fullmatch, shapes) if match}
    if has_unet(shapes):
        raise CheckpointError(f"{path.name} is a checkpoint and no LoRA; give {EXPECTED_LORA}.")
    unknown = next((name for name in shapes if not LAYER.fullmatch(name)), None)
    if unknown is not None or not layers:
        what = f"it holds {unknown[:100]!r}" if unknown is not None else "it holds no weight"
        known = "give a LoRA of up and down weights, as kohya's trainer and diffusers write them (no LoHa, LoKr or DoRA)"
        raise CheckpointError(f"{path.name} is no LoRA that can be used: {what}; {known}.")
    return len(layers)
