"""Sizes of pictures: which can be made, how they are written, and which a checkpoint was trained for."""

from __future__ import annotations

from typing import Any

from ov_backend.errors import SettingsError

#: Bounds of width and height in pixels, and what both must be multiples of: a latent has 8 pixels a side.
SMALLEST, LARGEST, MULTIPLE = 64, 4096, 8
#: The most pictures at once.
MAX_BATCH = 16

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


def parse_size(text: str) -> tuple[int, int]:
    """Read ``512x768`` or ``512``, width first.

    Raises:
        SettingsError: it is no size of a picture; the message says what would do.
    """
    sides = [side.strip() for side in text.lower().split("x")]
    if len(sides) not in (1, 2) or not all(side.isdecimal() and len(side) < 6 for side in sides):
        raise SettingsError(f"{text!r} is no size; write 512x768 or 512.")
    return check_size(int(sides[0]), int(sides[-1]))


def check_size(width: int, height: int) -> tuple[int, int]:
    """The size itself, if a picture of it can be made.

    Raises:
        SettingsError: it cannot; the message says what is expected.
    """
    for side in (width, height):
        if side % MULTIPLE or not SMALLEST <= side <= LARGEST:
            raise SettingsError(
                f"The size {width}x{height} holds {side}; width and height must be multiples of {MULTIPLE} from {SMALLEST}"
                f" to {LARGEST}, 512x768 for example."
            )
    return width, height
