"""Recognises the content of files that pictures are made from, so that a changed one is noticed."""

from __future__ import annotations

import hashlib
from pathlib import Path

#: Files up to this size are read as a whole; of larger ones, which are checkpoints, as many blocks at equal distances.
_WHOLE_BYTES = 64 << 20
_BLOCKS, _BLOCK_BYTES = 256, 64 << 10


class Fingerprints:
    """Fingerprints by path; each file is read once."""

    def __init__(self) -> None:
        self._by_path: dict[Path, str] = {}

    def of(self, path: Path) -> str:
        """The fingerprint of a file: of its content and not of its name or its time.

        Raises:
            OSError: it cannot be read.
        """
        if path not in self._by_path:
            self._by_path[path] = _fingerprint(path)
        return self._by_path[path]


def _fingerprint(path: Path) -> str:
    size = path.stat().st_size
    digest = hashlib.sha256(str(size).encode())
    with path.open("rb") as file:
        if size <= _WHOLE_BYTES:
            while block := file.read(1 << 20):
                digest.update(block)
        else:  # another training or merge changes every weight
            for i in range(_BLOCKS):
                file.seek(i * (size - _BLOCK_BYTES) // (_BLOCKS - 1))
                digest.update(file.read(_BLOCK_BYTES))
    return digest.hexdigest()


def sha256(path: Path) -> str:
    """The SHA-256 of a whole file; "" where it cannot be read."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() if hasattr(hashlib, "file_digest") else _slow(file.read())
    except OSError:
        return ""


def _slow(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()  # Python 3.10 has no file_digest
