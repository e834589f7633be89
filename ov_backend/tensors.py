"""The one map between torch and OpenVINO element types, and tensors that share memory across it."""

from __future__ import annotations

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

# OpenVINO's CPU plugin computes f64 in f32; a graph that asks for f64 means it, so such operators stay in PyTorch.
COMPUTED: frozenset[torch.dtype] = frozenset(TO_OV) - {torch.float64}


def share(tensor: torch.Tensor) -> ov.Tensor:
    """An OpenVINO tensor over the memory of a contiguous CPU tensor; nothing is copied.

    OpenVINO does not keep that memory alive: whoever uses the result must hold on to ``tensor``.
    """
    data = tensor.detach()
    if data.dtype == torch.bfloat16:  # numpy has no bfloat16: hand the bits over as int16 and name the type
        return ov.Tensor(data.view(torch.int16).numpy(), ov.Shape(list(data.shape)), ov.Type.bf16)
    return ov.Tensor(data.numpy(), shared_memory=True)


def constant(tensor: torch.Tensor, shared: bool) -> ov.Node:
    """An OpenVINO constant with the content of a contiguous CPU tensor; ``shared``: over its memory, as :func:`share`."""
    return ov.op.Constant(share(tensor), shared_memory=shared)
