"""The size of picture that a checkpoint was trained for."""

from __future__ import annotations

from typing import Any

#: How many times the pixels of the trained size, or a fraction of them, still make sense of a prompt as a rule.
_MOST, _LEAST, _LONGEST = 2.0, 0.5, 2.0


def own_size(pipe: Any) -> tuple[int, int]:
    """Width and height in pixels of the square picture that a pipeline's UNet was trained for."""
    side = int(pipe.unet.config.sample_size) * int(pipe.vae_scale_factor)
    return side, side


def size_hint(pipe: Any, width: int, height: int) -> str:
    """One sentence where a size is far from the trained one, else ""."""
    own = own_size(pipe)
    share = width * height / (own[0] * own[1])
    if _LEAST <= share <= _MOST and max(width, height) <= _LONGEST * min(width, height):
        return ""
    return (
        f"This checkpoint was made for {own[0]}x{own[1]}; at {width}x{height} things may repeat or fall apart."
        " Sizes close to its own are better."
    )
