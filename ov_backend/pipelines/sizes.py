"""Picture sizes: their bounds, their notation, and the size that a checkpoint was trained for."""

from __future__ import annotations

import re
from typing import Any

from ov_backend.core.errors import SettingsError, short_repr

#: Bounds of width and height in pixels, and their common divisor: a latent covers 8 x 8 pixels.
SMALLEST, LARGEST, MULTIPLE = 64, 4096, 8
#: The largest number of pictures at once.
MAX_BATCH = 16
#: Bounds of the guidance scale; usual are 1 to 20. Diffusers ignores the guidance at 1 and below.
MIN_GUIDANCE, MAX_GUIDANCE = 1.0, 1000.0
#: What a guidance scale has to be, for messages.
GUIDANCE = f"a number from {MIN_GUIDANCE:g} (no guidance, and twice as fast) to {MAX_GUIDANCE:g}, as 7"
#: The most pixels of all pictures that are generated at once.
MAX_PIXELS = LARGEST * LARGEST

_INTEGER = re.compile("-?[0-9]{1,9}")
#: Pictures within these bounds usually come out well: number of pixels relative to the trained size, and aspect ratio.
_MOST, _LEAST, _LONGEST = 2.0, 0.5, 2.0


def own_size(pipe: Any) -> tuple[int, int]:
    """Width and height in pixels of the square picture that a pipeline's UNet or transformer was trained for."""
    latents = pipe.unet.config.sample_size if hasattr(pipe, "unet") else pipe.default_sample_size
    side = int(latents) * int(pipe.vae_scale_factor)
    return side, side


def suggested_sizes(side: int) -> list[tuple[int, int]]:
    """Sizes that suit a checkpoint trained for squares of ``side`` pixels: that square, a portrait and a landscape."""
    short, long = (side, side * 3 // 2) if side < 768 else (side * 13 // 16, side * 19 // 16)
    sizes = ((side, side), (short, long), (long, short))
    return [(_fitting(width), _fitting(height)) for width, height in sizes]


def size_like(width: int, height: int, side: int) -> tuple[int, int]:
    """The size with the aspect ratio of ``width`` x ``height``, and about as many pixels as a square of ``side`` has."""
    ratio = min(max(width / height, 1 / _LONGEST), _LONGEST)
    return _fitting(side * ratio**0.5), _fitting(side / ratio**0.5)


def _fitting(side: float) -> int:
    return min(max(round(side / MULTIPLE) * MULTIPLE, SMALLEST), LARGEST)


def size_hint(pipe: Any, width: int, height: int) -> str:
    """A warning if a size is far from the trained one, else ""."""
    trained = own_size(pipe)
    share = width * height / (trained[0] * trained[1])
    if _LEAST <= share <= _MOST and max(width, height) <= _LONGEST * min(width, height):
        return ""
    return (
        f"This checkpoint was made for {trained[0]}x{trained[1]}; at {width}x{height} things may repeat or fall apart."
        " Sizes close to its own are better."
    )


def parse_size(text: str) -> tuple[int, int]:
    """Read ``512x768`` or ``512``, width first.

    Raises:
        SettingsError: the text is no picture size; the message says what is expected.
    """
    sides = [side.strip() for side in text.lower().split("x")]
    if len(sides) not in (1, 2) or not all(_INTEGER.fullmatch(side) for side in sides):
        raise SettingsError(f"{short_repr(text)} is no size; write 512x768 or 512.")
    return check_size(int(sides[0]), int(sides[-1]))


def check_size(width: int, height: int) -> tuple[int, int]:
    """Check a picture size and return it.

    Raises:
        SettingsError: a side is out of bounds; the message says what is expected.
    """
    for side in (width, height):
        if side % MULTIPLE or not SMALLEST <= side <= LARGEST:
            raise SettingsError(
                f"The size {width}x{height} cannot be drawn: {side} is not a multiple of {MULTIPLE} from {SMALLEST} to {LARGEST}."
                " Write for example 512x768."
            )
    return width, height


def check_batch(width: int, height: int, batch: int) -> int:
    """Check how many pictures of a size are generated at once, and return that number.

    Raises:
        SettingsError: there are too many, or too large ones; the message says how many there may be.
    """
    most = min(MAX_BATCH, MAX_PIXELS // (width * height))
    if not 1 <= batch <= most:
        raise SettingsError(
            f"Batch size is {batch}; it must be from 1 to {most} at {width}x{height}, so that the pictures fit into memory."
        )
    return batch


def check_guidance(scale: float, name: str = "CFG scale") -> float:
    """Check a guidance scale, which messages call ``name``, and return it.

    Raises:
        SettingsError: it is out of bounds; the message says what is expected.
    """
    if not MIN_GUIDANCE <= scale <= MAX_GUIDANCE:
        raise SettingsError(f"{name} is {scale:g}; it must be {GUIDANCE}.")
    return scale
