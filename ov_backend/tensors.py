"""The map between torch and OpenVINO element types, tensors that share memory, and the description of a tensor."""

from __future__ import annotations

import ov_backend.telemetry  # noqa: F401  # before OpenVINO

# isort: split
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import openvino as ov
import torch

from ov_backend.errors import CaptureError

_PAIRS: tuple[tuple[torch.dtype, ov.Type], ...] = (
    (torch.float32, ov.Type.f32),
    (torch.float16, ov.Type.f16),
    (torch.bfloat16, ov.Type.bf16),
    (torch.float64, ov.Type.f64),
    (torch.int64, ov.Type.i64),
    (torch.int32, ov.Type.i32),
    (torch.int16, ov.Type.i16),
    (torch.int8, ov.Type.i8),
    (torch.uint8, ov.Type.u8),
    (torch.bool, ov.Type.boolean),
)

TO_OV: dict[torch.dtype, ov.Type] = dict(_PAIRS)
TO_NAME: dict[torch.dtype, str] = {t: str(t).removeprefix("torch.") for t, _ in _PAIRS}
FROM_NAME: dict[str, torch.dtype] = {name: t for t, name in TO_NAME.items()}

# OpenVINO's CPU plugin computes f64 in f32. A graph that uses f64 needs its accuracy, so such operators stay in PyTorch.
COMPUTED: frozenset[torch.dtype] = frozenset(TO_OV) - {torch.float64}


def share(tensor: torch.Tensor) -> ov.Tensor:
    """An OpenVINO tensor over the memory of a contiguous CPU tensor; nothing is copied.

    OpenVINO does not keep that memory alive: the caller must hold ``tensor`` as long as the result is used.
    """
    data = tensor.detach()
    if data.dtype == torch.bfloat16:  # numpy has no bfloat16: pass the bits as int16 and name the type
        return ov.Tensor(data.view(torch.int16).numpy(), ov.Shape(list(data.shape)), ov.Type.bf16)
    return ov.Tensor(data.numpy(), shared_memory=True)


def constant(tensor: torch.Tensor, shared: bool) -> ov.Node:
    """An OpenVINO constant with the content of a contiguous CPU tensor; with ``shared`` it uses the tensor's memory."""
    return ov.op.Constant(share(tensor), shared_memory=shared)


@dataclass(frozen=True)
class TensorSpec:
    """Name, shape and dtype of one tensor of a graph; -1 is a dynamic size."""

    name: str
    shape: tuple[int, ...]
    dtype: str

    @classmethod
    def of(cls, name: str, tensor: torch.Tensor) -> TensorSpec:
        """The description of a live tensor.

        Raises:
            CaptureError: OpenVINO does not have its dtype or layout.
        """
        if tensor.dtype not in TO_NAME or tensor.layout is not torch.strided:
            raise CaptureError(f"{name} is a {tensor.layout} tensor of {tensor.dtype}, which OpenVINO does not have")
        return cls(name, tuple(map(_size, tensor.shape)), TO_NAME[tensor.dtype])

    @property
    def dynamic(self) -> bool:
        """Whether a size is dynamic."""
        return -1 in self.shape

    def takes(self, shape: Sequence[int]) -> bool:
        """Whether a tensor of this shape fits."""
        return len(shape) == len(self.shape) and all(expected in (-1, size) for expected, size in zip(self.shape, shape))

    def __str__(self) -> str:
        return f"{self.name}:{self.dtype}[{','.join(map(str, self.shape))}]"


def _size(size: Any) -> int:
    if isinstance(size, int):
        return size
    constant_size = size.node.maybe_as_int()
    return -1 if constant_size is None else int(constant_size)


def nested_tensors(value: Any) -> Iterator[torch.Tensor]:
    """Every tensor in nested tuples and lists, in order."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from nested_tensors(item)
