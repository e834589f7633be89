"""The header of a checkpoint file, which is read and checked before any weight.

A safetensors file is a length of eight bytes, JSON of that length (name, dtype, shape and offsets of every tensor), and the data
(https://github.com/huggingface/safetensors#format). Nothing in it is ever executed; a pickle is refused without being read.

Names, shapes and the length of the file are read here, for messages that say what a file is instead and how much of it is
missing; safetensors itself checks the rest when it reads the weights. It cannot do both: where it refuses, it tells neither. And
it takes up to 16 times the memory of a header, and a minute for one of 100 MiB, which it accepts; so headers longer than any
checkpoint's are refused before.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ov_backend.checkpoint.file_kinds import EXPECTED, by_beginning, by_names, folder_problem
from ov_backend.core.errors import CheckpointError, short_repr

#: The longest header; a tensor takes some 130 bytes, and SDXL has 2500.
MAX_HEADER_BYTES = 2 << 20
_PICKLES = (".ckpt", ".pt", ".pth", ".bin", ".pkl")
_PICKLE_STARTS = (b"PK\x03\x04", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")

UNET = "model.diffusion_model."
VAE = "first_stage_model."
CLIP = "cond_stage_model.transformer."
OPEN_CLIP = "cond_stage_model.model."
XL_CLIP = "conditioner.embedders.0.transformer."
XL_OPEN_CLIP = "conditioner.embedders.1.model."
XL_REFINER = "conditioner.embedders.0.model."


@dataclass(frozen=True)
class Header:
    """Names and shapes of a checkpoint's tensors; its family is "sd1", "sd2" or "sdxl"."""

    path: Path
    shapes: Mapping[str, tuple[int, ...]]
    family: str

    def under(self, prefix: str) -> dict[str, tuple[int, ...]]:
        """The shapes of the tensors whose names begin with ``prefix``, by the rest of the name."""
        return {name.removeprefix(prefix): shape for name, shape in self.shapes.items() if name.startswith(prefix)}


def given_path(value: Any) -> Path:
    """The path that a program gives. Raises CheckpointError if it is none, or empty."""
    if not isinstance(value, (str, Path)) or not str(value).strip():
        raise CheckpointError(f"{short_repr(value)} is no path of a checkpoint; give that of {EXPECTED}.")
    return Path(value)


def read_header(path: Path) -> Header:
    """Read and check the header of a checkpoint file.

    Raises:
        CheckpointError: the file is missing, a pickle, truncated, or no checkpoint of a known family.
    """
    shapes = read_shapes(path)
    return Header(path, shapes, _family(path, shapes))


def is_checkpoint(path: Path) -> bool:
    """Whether a file has the header of a checkpoint of a known family."""
    try:
        read_header(path)
    except CheckpointError:
        return False
    return True


def read_shapes(path: Path, expected: str = EXPECTED) -> dict[str, tuple[int, ...]]:
    """The shape of every tensor of a safetensors file by its name; ``expected`` says in messages what should be given.

    Raises:
        CheckpointError: the file is missing, a pickle, truncated, or no safetensors file.
    """
    try:
        if path.parts[:1] in (("http:",), ("https:",)):
            address = str(path).replace(":/", "://", 1)  # a path has single slashes
            raise CheckpointError(f"{address} is an address, and nothing is downloaded here; download it and give {expected}.")
        if path.is_dir():
            raise CheckpointError(folder_problem(path, is_checkpoint))
        if not path.is_file():
            raise CheckpointError(f"{path} is no file; give the path of {expected}.")
        size = path.stat().st_size
        with path.open("rb") as file:
            start = file.read(64)
            _refuse_pickle(path, start)
            length = int.from_bytes(start[:8], "little")
            if length > MAX_HEADER_BYTES or start[8:9] not in (b"", b"{"):  # as of every text
                kind = by_beginning(start, expected) or f"is not a safetensors file; give {expected}"
                raise CheckpointError(f"{path.name} {kind}.")
            file.seek(8)
            if size < 8 + length:
                raise CheckpointError(_truncated(path, size, 8 + length))
            text = file.read(length)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read ({error.strerror}); check its path and permissions.") from error
    try:
        entries = {name: _entry(value) for name, value in json.loads(text).items() if name != "__metadata__"}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"{path.name} is not a safetensors file: its header is damaged; give {expected}.") from error
    end = 8 + length + max((stop for _, stop in entries.values()), default=0)
    if size != end:
        raise CheckpointError(_truncated(path, size, end))
    return {name: shape for name, (shape, _) in entries.items()}


def _entry(value: Mapping[str, Any]) -> tuple[tuple[int, ...], int]:
    """Shape and last offset of a tensor."""
    shape, (begin, stop) = tuple(value["shape"]), value["data_offsets"]
    if not all(type(number) is int and 0 <= number < 1 << 63 for number in (*shape, begin, stop)):
        raise ValueError("its shape or its offsets are no whole numbers of 8 bytes")
    return shape, stop


def _refuse_pickle(path: Path, start: bytes) -> None:
    if path.suffix.lower() == ".zip":
        raise CheckpointError(f"{path.name} is a packed archive; unpack it and give the .safetensors file in it.")
    if path.suffix.lower() in _PICKLES or start.startswith(_PICKLE_STARTS):
        raise CheckpointError(
            f"{path.name} is a pickle, which could run any code when read and is therefore not opened;"
            " convert it to .safetensors (the WebUI's Checkpoint Merger does) and give that file."
        )


def _truncated(path: Path, size: int, expected: int) -> str:
    return f"{path.name} is damaged: it has {size:,} bytes where {max(expected, 8):,} are expected; download or copy it again."


def _family(path: Path, shapes: Mapping[str, tuple[int, ...]]) -> str:
    def has(prefix: str) -> bool:
        return any(name.startswith(prefix) for name in shapes)

    other = by_names(shapes, has_unet(shapes))
    if other:
        raise CheckpointError(f"{path.name} {other}.")
    if not has_unet(shapes):
        example = next(iter(sorted(shapes)), None)
        what = f"its tensors are named like {example[:100]!r}" if example else "it holds no tensor"
        raise CheckpointError(f"{path.name} is no checkpoint: {what}; give {EXPECTED}.")
    if has(XL_REFINER):
        raise CheckpointError(f"{path.name} is an SDXL refiner, which finishes other models' pictures; give a base checkpoint.")
    if not has(VAE):
        raise CheckpointError(f"{path.name} holds no VAE, only other parts; give {EXPECTED} with all of its parts.")
    if has(XL_CLIP) and has(XL_OPEN_CLIP):
        return "sdxl"
    if has(OPEN_CLIP):
        return "sd2"
    if has(CLIP):
        return "sd1"
    raise CheckpointError(f"{path.name} holds no known text encoder; give {EXPECTED} with all of its parts.")


def has_unet(shapes: Mapping[str, tuple[int, ...]]) -> bool:
    """Whether a file holds the UNet of a checkpoint."""
    return any(name.startswith(UNET) for name in shapes)
