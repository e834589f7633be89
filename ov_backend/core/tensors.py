"""The map between torch and OpenVINO element types, tensors that share memory, and the description of a tensor."""

from __future__ import annotations

import ov_backend.core.telemetry  # noqa: F401  # before OpenVINO

# isort: split
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import openvino as ov
import torch

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

_CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}

# OpenVINO's CPU plugin computes f64 in f32. A graph that uses f64 needs its accuracy, so such operators stay in PyTorch.
COMPUTED: frozenset[torch.dtype] = frozenset(TO_OV) - {torch.float64}


def resolved(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor with its own values in memory, as a trace takes it: not a conjugate or negative that is only marked as one."""
    return tensor.resolve_conj().resolve_neg()


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


def kind_of(tensor: torch.Tensor) -> str:
    """The dtype of a tensor by name, "float32", before it the layout if it is not strided: "sparse_coo float32"."""
    layout = "" if tensor.layout is torch.strided else f"{tensor.layout} ".removeprefix("torch.")
    return layout + str(tensor.dtype).removeprefix("torch.")


@dataclass(frozen=True)
class TensorSpec:
    """Name, shape and dtype of one tensor of a graph; -1 is a dynamic size, and :func:`kind_of` names the dtype.

    A result also has the ``strides`` that PyTorch gives it, where these are not those of contiguous memory.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    strides: tuple[int, ...] | None = None

    @classmethod
    def of(cls, name: str, tensor: torch.Tensor) -> TensorSpec:
        """The description of a live tensor, which may be of a kind that OpenVINO does not have."""
        return cls(name, tuple(map(_size, tensor.shape)), kind_of(tensor))

    @property
    def exists(self) -> bool:
        """Whether OpenVINO has such tensors; only PyTorch can read others."""
        return self.dtype in FROM_NAME

    @classmethod
    def of_result(cls, name: str, tensor: torch.Tensor) -> TensorSpec:
        """As :meth:`of`, of what a graph returns; the strides of a tensor with dynamic sizes are left out."""
        spec = cls.of(name, tensor)
        if spec.dynamic or not tensor.numel():
            return spec
        strides = tuple(map(_size, tensor.stride()))
        return spec if strides == contiguous_strides(spec.shape) else replace(spec, strides=strides)

    @property
    def dynamic(self) -> bool:
        """Whether a size is dynamic."""
        return -1 in self.shape

    def takes(self, shape: Sequence[int]) -> bool:
        """Whether a tensor of this shape fits."""
        return len(shape) == len(self.shape) and all(expected in (-1, size) for expected, size in zip(self.shape, shape))

    def __str__(self) -> str:
        return f"{self.name}:{self.dtype}[{','.join(map(str, self.shape))}]"


def contiguous_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """The strides of a contiguous tensor of a shape."""
    strides = [1]
    for size in reversed(shape[1:]):
        strides.append(strides[-1] * max(size, 1))
    return tuple(reversed(strides))[: len(shape)]


def memory_order(shape: Sequence[int], strides: Sequence[int]) -> list[int]:
    """The dimensions of a tensor from the outermost in memory to the innermost."""
    return sorted(range(len(shape)), key=lambda dim: (-strides[dim], -shape[dim]))


def strides_like(shape: Sequence[int], like: Sequence[int]) -> tuple[int, ...]:
    """The strides of a tensor of a shape without gaps, whose dimensions are in the order of other strides."""
    order = memory_order(shape, like)
    strides = contiguous_strides([shape[dim] for dim in order])
    return tuple(strides[order.index(dim)] for dim in range(len(shape)))


def unusual_strides(tensor: torch.Tensor) -> tuple[int, ...] | None:
    """The strides of a tensor, None where they make no difference to what PyTorch answers for a contiguous one."""
    if not tensor.is_contiguous():
        return tensor.stride()
    last = _CHANNELS_LAST.get(tensor.dim())
    if last is None or not tensor.is_contiguous(memory_format=last):
        return None
    return None if tensor.stride() == contiguous_strides(tensor.shape) else tensor.stride()  # one channel, or one pixel


def with_strides(value: torch.Tensor, strides: Sequence[int]) -> torch.Tensor:
    """A tensor or a copy that has these strides; where one is 0, the elements along that dimension must be equal."""
    if value.stride() == tuple(strides):
        return value
    copy = torch.empty_strided(value.shape, tuple(strides), dtype=value.dtype)
    into = copy
    for dim, stride in enumerate(strides):
        if stride == 0 and value.shape[dim]:
            into, value = into.narrow(dim, 0, 1), value.narrow(dim, 0, 1)
    into.copy_(value)
    return copy


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
