"""The content of one tensor: where it lies, a few of its elements, its hash."""

from __future__ import annotations

import hashlib
import math
import operator
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from ov_backend.core import content_hash
from ov_backend.core.errors import pass_on_signals
from ov_backend.core.tensors import unusual_strides

#: Elements of every weight that are compared at every check.
PROBES = 16

#: Address, version, shape, strides and dtype of a tensor.
Mark = tuple[Any, ...]

_VERSION, _SHAPE, _DTYPE = (operator.attrgetter(name) for name in ("_version", "shape", "dtype"))

#: Bytes that are hashed at once; other threads wait for the interpreter's lock meanwhile where hashing does not release it.
_CHUNK = 1 << 21


def mark(tensor: torch.Tensor) -> Mark:
    """What an assignment to ``.data`` or a counted write changes; tensors made in inference mode count no writes."""
    version = 0 if tensor.is_inference() else tensor._version
    return address(tensor), version, tensor.shape, tensor.stride(), tensor.dtype


def marks(tensors: Sequence[torch.Tensor]) -> Any:
    """What :func:`mark` says of many tensors; comparable with what it said before, and faster."""
    try:
        versions = list(map(_VERSION, tensors))
    except RuntimeError as error:  # some were made in inference mode
        pass_on_signals(error)
        return list(map(mark, tensors))
    of_tensor = torch.Tensor.data_ptr, _SHAPE, torch.Tensor.stride, _DTYPE
    return [versions, *(list(map(part, tensors)) for part in of_tensor)]


def address(tensor: torch.Tensor) -> int:
    """Where the content lies in the host's memory; 0 on another device."""
    return tensor.data_ptr() if tensor.device.type == "cpu" else 0


def layout(tensor: torch.Tensor) -> str:
    """What a trace sees of a tensor: dtype, shape, and strides where they are not the usual ones."""
    return f"{tensor.dtype}{tuple(tensor.shape)}{unusual_strides(tensor) or ''}"


def as_bits(tensor: torch.Tensor) -> torch.Tensor:
    """The content as integers, without a copy: bits compare equal where NaN would not."""
    data = torch.view_as_real(tensor.detach()) if tensor.is_complex() else tensor.detach()
    return data.view({1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[data.dtype.itemsize])


def whole(tensor: torch.Tensor) -> torch.Tensor | None:
    """A flat view on everything, in the order of the memory; None where there are gaps between the elements."""
    bits = as_bits(tensor)
    ordered = bits.permute(sorted(range(bits.dim()), key=lambda dim: -bits.stride(dim)))
    return ordered.view(-1) if ordered.is_contiguous() else None


def probe(tensor: torch.Tensor) -> torch.Tensor:
    """A view on a few elements, spread over the whole of a weight (contiguous or not)."""
    if not tensor.numel() or tensor.device.type != "cpu":
        return torch.empty(0)
    bits = as_bits(tensor)
    if bits.is_contiguous():
        return bits.view(-1)[:: _step(bits.numel(), bits.numel() // (len(bits) if bits.dim() else 1))]
    sizes, strides = bits.shape, bits.stride()
    longest = max(sizes)
    steps = [size // min(PROBES, longest) if size >= min(PROBES, longest) else 0 for size in sizes]  # along a diagonal
    count = min(math.ceil(size / step) for size, step in zip(sizes, steps) if step)
    return bits.as_strided((count,), (sum(map(int.__mul__, steps, strides)),), bits.storage_offset())


def _step(count: int, row: int) -> int:
    """A step through ``count`` elements that meets about :data:`PROBES` of them, in ever other places of their rows."""
    step = max(1, count // PROBES)
    if step < row:
        return step
    return step - step % row - row + max(1, round(0.618 * row))  # whole rows only would always meet the same column


def hashed(tensor: torch.Tensor) -> bytes:
    """The hash of the content, in the order of the elements."""
    return content_hash.of(_chunks(tensor))


def name(tensor: torch.Tensor, digest: bytes) -> str:
    """What names a content with this hash: of dtype and shape too, in 128 bits."""
    kind = f"{tensor.dtype}{tuple(tensor.shape)}{content_hash.NAME}"
    return hashlib.sha256(kind.encode() + digest).hexdigest()[:32]


def _chunks(tensor: torch.Tensor) -> Iterator[memoryview]:
    if tensor.device.type == "cpu" and tensor.numel():
        content = memoryview(as_bits(tensor).contiguous().reshape(-1).numpy()).cast("B")
        for start in range(0, len(content), _CHUNK):
            yield content[start : start + _CHUNK]
