"""The file of one entry of a store: a zip archive with a manifest that lists every member and its length.

Nothing in a file is executed or unpickled. Lengths and counts are checked before they are trusted, and a CRC covers every byte
of the content.
"""

from __future__ import annotations

import json
import os
import re
import stat
import struct
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from ov_backend.core import posix
from ov_backend.store.ownership import check_entry

MANIFEST = "manifest.json"
MAX_MEMBERS = 16
#: The exceptions that reading a truncated, damaged, foreign or malicious entry can raise, its zip file and what is in it.
DAMAGE = (
    *(OSError, ValueError, LookupError, TypeError, AttributeError, EOFError, RuntimeError, ArithmeticError, MemoryError),
    *(zipfile.BadZipFile, zlib.error, struct.error),
)


class OtherVersion(ValueError):
    """An entry is whole, but another version of this package wrote it, in its own format."""


@dataclass(frozen=True)
class Kind:
    """The kind of entries in a store, which may be compressed (``packed``) and have a largest size.

    The suffix distinguishes the files from all others in the folder; every file states name and version of its format.
    """

    suffix: str
    format: str
    max_bytes: int
    packed: bool

    @property
    def temporary(self) -> str:
        """Suffix of a file that is being written."""
        return f"{self.suffix}-part"

    @property
    def noun(self) -> str:
        """The kind's noun, for messages."""
        return self.format.split()[1]

    def owns(self, name: str) -> bool:
        """Whether a store of this kind writes files of this name."""
        suffix, temporary = re.escape(self.suffix), re.escape(self.temporary)
        return re.fullmatch(rf"[0-9a-f]+{suffix}|[0-9a-f]+\.\w+{temporary}", name) is not None


GRAPHS = Kind(".ovgraph", "ov_backend graph 2", 256 << 20, packed=True)
#: A compiled graph with its weights, as large as these.
BLOBS = Kind(".ovblob", "ov_backend blob 2", 64 << 30, packed=False)
#: What int8 has learnt.
RECIPES = Kind(".ovrecipe", "ov_backend recipe 1", 16 << 20, packed=True)
#: What networks were called with, for the next process.
RUNS = Kind(".ovruns", "ov_backend run 1", 1 << 20, packed=True)


def pack(file: IO[bytes], kind: Kind, key: str, files: Mapping[str, bytes]) -> None:
    """Write an entry."""
    sizes = {name: len(data) for name, data in files.items()}
    manifest = {"format": kind.format, "key": key, "sizes": sizes}
    method = zipfile.ZIP_DEFLATED if kind.packed else zipfile.ZIP_STORED
    with zipfile.ZipFile(file, "w", method, compresslevel=1 if kind.packed else None) as archive:
        archive.writestr(MANIFEST, json.dumps(manifest, sort_keys=True))
        for name, data in files.items():
            archive.writestr(name, data)


def unpack(path: Path, kind: Kind, key: str) -> dict[str, bytes]:
    """Read an entry.

    Raises:
        FileNotFoundError: there is no such file.
        OtherVersion: another version of this package wrote it.
        DAMAGE: the file is no entry of this kind and key, or is damaged.
    """
    with _open(path, kind) as file, zipfile.ZipFile(file) as archive:
        manifest = _manifest(archive, kind)
        _check_format(manifest.get("format"), kind)
        if manifest.get("key") != key:
            raise ValueError("it belongs to another key")
        members = {info.filename: info for info in archive.infolist()}
        sizes = manifest.get("sizes")
        if not isinstance(sizes, dict) or set(sizes) != set(members) - {MANIFEST}:
            raise ValueError("its manifest does not fit its contents")
        return {name: _member(archive, members[name], size) for name, size in sizes.items()}


def _check_format(stated: object, kind: Kind) -> None:
    name = kind.format.rpartition(" ")[0]
    if isinstance(stated, str) and stated != kind.format and re.fullmatch(rf"{re.escape(name)} \d+", stated):
        raise OtherVersion("it is in the format of another version")
    if stated != kind.format:
        raise ValueError("it is in another format")


def _manifest(archive: zipfile.ZipFile, kind: Kind) -> dict[str, Any]:
    members = archive.infolist()
    if len(members) > MAX_MEMBERS or sum(info.file_size for info in members) > kind.max_bytes:
        raise ValueError(f"it claims to be larger than any {kind.noun} is")
    if any(info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) for info in members):
        raise ValueError("it is compressed with an unexpected method")
    manifest = json.loads(archive.read(MANIFEST))
    if not isinstance(manifest, dict):
        raise ValueError("it is in another format")
    return manifest


def _open(path: Path, kind: Kind) -> IO[bytes]:
    """Open a regular file that is no larger than an entry may be; links are not followed."""
    handle = os.open(path, posix.READ_FLAGS)
    try:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            raise ValueError("it is no file")
        check_entry(status)
        if status.st_size > kind.max_bytes:
            raise ValueError(f"it is larger than any {kind.noun} is")
        return os.fdopen(handle, "rb")
    except (OSError, ValueError):
        os.close(handle)
        raise


def _member(archive: zipfile.ZipFile, info: zipfile.ZipInfo, size: object) -> bytes:
    """Read one member; zipfile reads no further than the length in its header, and checks length and CRC."""
    data = archive.read(info) if info.file_size == size else None
    if data is None or len(data) != size:
        raise ValueError(f"{info.filename} is not as long as its manifest says")
    return data
