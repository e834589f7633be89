"""Files of pictures: each appears whole or not at all."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from pathlib import Path

from ov_backend.core.atomic_file import atomic_write

#: Names of finished pictures.
NAME = re.compile(r"\d{6,}-\d+\.png")
#: Names of everything that a batch replaces or removes; nothing else in a folder is touched.
_OWN = rf"{NAME.pattern}|contact-\d{{3}}\.jpg|manifest\.parquet"
#: What :func:`atomic_write` calls them until they are complete.
_TEMPORARY = re.compile(rf"\.({_OWN})\.part")


def is_own_name(name: str) -> bool:
    """Whether a batch may replace or remove a file of this name."""
    return re.fullmatch(_OWN, name) is not None or _TEMPORARY.fullmatch(name) is not None


def write(folder: Path, name: str, data: bytes) -> str:
    """Write a picture, whole or not at all; returns its SHA-256. The folder is not flushed, so its name may be lost.

    Raises:
        OSError: it cannot be written.
    """
    with atomic_write(folder / name) as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    return hashlib.sha256(data).hexdigest()


def sha256(path: Path) -> str:
    """The SHA-256 of a whole file.

    Raises:
        OSError: it cannot be read.
    """
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


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
