"""The demo's sheet: both pictures and their difference side by side, with labels."""

from __future__ import annotations

import numpy as np
from PIL import Image, ImageDraw, ImageFont

_BAR, _GAP = 28, 8
_PAPER, _INK = (255, 255, 255), (20, 20, 20)


def gain(largest: int) -> int:
    """The factor that makes a difference visible: a power of two that keeps the largest within 255, 64 at most."""
    factor = 1
    while factor < 64 and largest * factor * 2 <= 255:
        factor *= 2
    return factor


def sheet(expected: np.ndarray, actual: np.ndarray, difference: np.ndarray, precision: str) -> Image.Image:
    """Draw both pictures and their difference side by side.

    Args:
        expected: PyTorch's picture, [height, width, 3] uint8.
        actual: OpenVINO's picture, of the same shape.
        difference: their absolute difference, 0 to 255.
        precision: the precision that OpenVINO computed in; PyTorch computes in f32.
    """
    largest = int(difference.max())
    factor = gain(largest)
    columns = (
        ("PyTorch, f32", expected),
        (f"OpenVINO, {precision}", actual),
        (f"Difference x{factor}  (largest {largest} of 255)", (difference * factor).clip(0, 255).astype(np.uint8)),
    )
    font = ImageFont.load_default()
    height, width = expected.shape[:2]
    column = max(width, *(int(font.getlength(label)) + _GAP for label, _ in columns))
    image = Image.new("RGB", (3 * column + 4 * _GAP, height + _BAR + _GAP), _PAPER)
    draw = ImageDraw.Draw(image)
    for i, (label, pixels) in enumerate(columns):
        left = _GAP + i * (column + _GAP)
        draw.text((left, _BAR // 3), label, fill=_INK, font=font)
        image.paste(Image.fromarray(pixels), (left, _BAR))
    return image
