"""Writes pictures side by side into one file."""

from __future__ import annotations

from pathlib import Path

import torch
from PIL import Image
from torch import Tensor


def to_image(picture: Tensor) -> Image.Image:
    """A picture [3, h, w] in -1..1 as an image."""
    pixels = ((picture.float().clamp(-1, 1) + 1) * 127.5).round().to(torch.uint8)
    return Image.fromarray(pixels.permute(1, 2, 0).cpu().numpy())


def save_grid(pictures: Tensor, path: Path, columns: int, gap: int = 2) -> None:
    """Write pictures [n, 3, h, w] in -1..1 as one picture, row by row."""
    height, width = pictures.shape[-2:]
    rows = -(-len(pictures) // columns)
    sheet = Image.new("RGB", (columns * (width + gap) - gap, rows * (height + gap) - gap), "white")
    for index, picture in enumerate(pictures):
        row, column = divmod(index, columns)
        sheet.paste(to_image(picture), (column * (width + gap), row * (height + gap)))
    path.parent.mkdir(parents=True, exist_ok=True)
    sheet.save(path, quality=90)
