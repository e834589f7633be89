"""What a generation gives: files of pictures that carry their parameters."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ov_backend.core.atomic_file import atomic_write
from ov_backend.ui.infotext import png

if TYPE_CHECKING:
    from PIL import Image


@dataclass(frozen=True)
class Generated:
    """One generation.

    Attributes:
        files: its pictures.
        infotext: the parameters that they carry as text.
        interrupted: after which step of how many the user has interrupted it; None where every step is done.
    """

    files: tuple[Path, ...]
    infotext: str
    interrupted: tuple[int, int] | None = None


def write_pictures(folder: Path, pictures: Iterable[Image.Image], texts: Iterable[str], seed: int) -> tuple[Path, ...]:
    """Write the pictures of one generation as PNG files, each whole or not at all; returns their paths in the same order.

    Args:
        folder: is made if it is not there.
        pictures: the pictures.
        texts: the parameters of each, which its file carries as the WebUI's do.
        seed: of the first; the others' follow. It is a part of the files' names, after the time.

    Raises:
        OSError: a file cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    pairs = enumerate(zip(pictures, texts))
    return tuple(_write(folder, *each, f"{seed + i}-{time.time_ns() % 10**9:09d}-{i}") for i, each in pairs)


def _write(folder: Path, picture: Image.Image, text: str, name: str) -> Path:
    path = folder / f"{time.strftime('%Y%m%d-%H%M%S')}-{name}.png"
    with atomic_write(path) as file:
        file.write(png(picture, text))
    return path
