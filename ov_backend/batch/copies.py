"""Files of the machine that runs the batch, on another machine: checkpoints, LoRAs and pictures to start from."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from ov_backend.batch.fingerprints import sha256
from ov_backend.batch.row import Row
from ov_backend.settings import default_cache_dir

_BLOCK_BYTES = 16 << 20

#: SHA-256 of files by their paths, on the machine that runs the batch.
Digests = Mapping[Path, str]


def default_folder() -> Path:
    """Where copies of files are kept: the folder ``files`` in the user's cache folder."""
    return default_cache_dir().parent / "files"


class FileServer:
    """Reads files of the machine that it runs on."""

    def read(self, path: Path) -> Iterator[bytes]:
        """The content of a file in blocks.

        Raises:
            OSError: it cannot be read.
        """
        with path.open("rb") as file:
            while block := file.read(_BLOCK_BYTES):
                yield block


class Copies:
    """Finds files of another machine on this one, and copies those that are not here.

    Args:
        read: the content of a file of the other machine, in blocks.
        folder: of the copies, which are named by their content.
    """

    def __init__(self, read: Callable[[Path], Iterable[bytes]], folder: Path) -> None:
        self._read, self._folder = read, folder
        self._local: dict[str, Path] = {}

    def localized(self, row: Row, digests: Digests) -> Row:
        """The same row, with files of this machine.

        Raises:
            OSError: a file cannot be copied.
        """

        def local(path: Path) -> Path:
            return self._path(path, digests[path])

        loras = tuple((local(path), strength) for path, strength in row.loras)
        return replace(row, checkpoint=local(row.checkpoint), picture=row.picture and local(row.picture), loras=loras)

    def _path(self, path: Path, digest: str) -> Path:
        """The file itself if this machine has it under the same path with the same content, else its copy."""
        if digest not in self._local:
            copy = self._folder / f"{digest}{path.suffix}"
            present = next((each for each in (path, copy) if each.is_file() and sha256(each) == digest), None)
            self._local[digest] = present or self._copied(path, digest, copy)
        return self._local[digest]

    def _copied(self, path: Path, digest: str, copy: Path) -> Path:
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        content = hashlib.sha256()
        with tempfile.NamedTemporaryFile(dir=self._folder, delete=False) as file:
            temporary = Path(file.name)
            try:
                for block in self._read(path):
                    content.update(block)
                    file.write(block)
                file.close()
                if content.hexdigest() != digest:
                    raise OSError(f"{path} was changed while the batch runs; run it again")
                temporary.replace(copy)
            except BaseException:
                temporary.unlink(missing_ok=True)
                raise
        return copy
