"""A small checkpoint of random weights, for the demo and the command line."""

from __future__ import annotations

from pathlib import Path

from ov_backend.checkpoint.random_weights import write_random_checkpoint

_ONE_LEVEL = {
    "block_out_channels": [32],
    "layers_per_block": 1,
    "down_block_types": ["CrossAttnDownBlock2D"],
    "up_block_types": ["CrossAttnUpBlock2D"],
}
_TWO_LEVELS = {
    "block_out_channels": [32, 64],
    "layers_per_block": 1,
    "down_block_types": ["CrossAttnDownBlock2D", "DownBlock2D"],
    "up_block_types": ["UpBlock2D", "CrossAttnUpBlock2D"],
}
_VAE = {"block_out_channels": [32] * 4}


def write_small_checkpoint(folder: Path, name: str = "small", levels: int = 1) -> Path:
    """Write it into a folder and return its path; a UNet of one level compiles in half the time of one of two."""
    unet = _ONE_LEVEL if levels == 1 else _TWO_LEVELS
    return write_random_checkpoint(folder / f"{name}.safetensors", unet=unet, vae=_VAE, text={"num_hidden_layers": 2})
