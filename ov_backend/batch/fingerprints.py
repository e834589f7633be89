"""Recognises the content of files, so that a changed one is noticed."""

from __future__ import annotations

import hashlib
from pathlib import Path

_BLOCK_BYTES = 1 << 20


class Fingerprints:
    """Fingerprints of the files that pictures are made from, by path; each file is read once."""

    def __init__(self) -> None:
        self._by_path: dict[Path, str] = {}

    def of(self, path: Path) -> str:
        """The fingerprint of a file: of its content and not of its name or its time.

        Raises:
            OSError: it cannot be read.
        """
        if path not in self._by_path:
            self._by_path[path] = sha256(path)
        return self._by_path[path]


def sha256(path: Path) -> str:
    """The SHA-256 of a whole file.

    Raises:
        OSError: it cannot be read.
    """
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()
