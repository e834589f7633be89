"""A small checkpoint of random weights, for the demo and the command line."""

from __future__ import annotations

from pathlib import Path

from tests.helpers.random_checkpoint import write_random_checkpoint

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


def write_small_checkpoint(folder: Path, name: str = "small", levels: int = 1, vae_levels: int = 4, seed: int = 0) -> Path:
    """Write it into a folder and return its path.

    Args:
        levels: of the UNet, 1 or 2; one compiles in half the time of two.
        vae_levels: each but one doubles the width of the picture: the checkpoint's own size is 256 of four levels.
    """
    unet = _ONE_LEVEL if levels == 1 else _TWO_LEVELS
    blocks = {"down_block_types": ["DownEncoderBlock2D"] * vae_levels, "up_block_types": ["UpDecoderBlock2D"] * vae_levels}
    vae = {"block_out_channels": [32] * vae_levels, **blocks}
    return write_random_checkpoint(folder / f"{name}.safetensors", seed, unet=unet, vae=vae, text={"num_hidden_layers": 2})
