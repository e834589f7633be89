"""Files of pictures: each appears whole or not at all."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import re
from pathlib import Path
from typing import Any

#: Names of finished pictures and of those that are being written; nothing else in a folder is touched.
NAME = re.compile(r"\d{6,}-\d+\.png")
_TEMPORARY = re.compile(r"\.\d{6,}-\d+\.png\.part")
_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)


def encode(image: Any, text: str) -> bytes:
    """A picture of Pillow's as PNG, with its generation parameters as the WebUI writes them."""
    from PIL import PngImagePlugin

    info = PngImagePlugin.PngInfo()
    info.add_text("parameters", text)
    buffer = io.BytesIO()
    image.save(buffer, format="PNG", pnginfo=info)
    return buffer.getvalue()


def write(folder: Path, name: str, data: bytes) -> str:
    """Write a picture, whole or not at all; returns its SHA-256. The folder is not flushed, so its name may be lost.

    Raises:
        OSError: it cannot be written.
    """
    temporary = folder / f".{name}.part"
    try:
        handle = os.open(temporary, _FLAGS, 0o644)
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(handle)
        temporary.replace(folder / name)
    except BaseException:
        remove(temporary)
        raise
    return hashlib.sha256(data).hexdigest()


def remove_unfinished(folder: Path) -> int:
    """Remove what killed processes were writing; returns the number of files. The caller has locked the folder."""
    names = [entry.name for entry in os.scandir(folder) if _TEMPORARY.fullmatch(entry.name)]
    return sum(remove(folder / name) for name in names)


def remove(path: Path) -> bool:
    """Remove a file; whether there was one."""
    with contextlib.suppress(OSError):
        path.unlink()
        return True
    return False
