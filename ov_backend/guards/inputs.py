"""What a forward can see of its tensors beyond names, shapes, dtypes and values.

A trace runs on fake tensors, which have the strides of the tensors and ask for gradients as they do. The code that ran may name
something else of a tensor. Either that becomes a part of the graph's key, or the call stays in PyTorch where the fake tensor
would answer otherwise.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from ov_backend.core.errors import CaptureError
from ov_backend.core.tensors import TensorSpec, memory_order, unusual_strides
from ov_backend.guards.describe import DOCUMENTATION
from ov_backend.guards.signature import Call
from ov_backend.guards.traced_code import TracedCode
from ov_backend.guards.weights import WeightsGuard

#: Names by which code asks how an input lies in memory, or whether it asks for gradients.
_OF_STAND_INS = frozenset({"is_contiguous", "stride", "requires_grad"})
#: Names by which code asks whether PyTorch would record operations.
_OF_GRADIENTS = frozenset({"is_grad_enabled", "_get_grad_enabled"})
#: Names by which code asks whether it runs under ``torch.inference_mode()``.
_OF_INFERENCE = frozenset({"is_inference", "is_inference_mode_enabled"})

#: Names by which code asks a tensor for something, and whether the fake tensor of a tensor answers that otherwise.
_NOT_OF_STAND_INS: dict[str, Callable[[torch.Tensor], bool]] = {
    "_version": lambda tensor: True,
    "data_ptr": lambda tensor: True,
    "untyped_storage": lambda tensor: True,
    "storage": lambda tensor: True,
    "_typed_storage": lambda tensor: True,
    "is_fx_tracing": lambda tensor: True,
    "storage_offset": lambda tensor: tensor.storage_offset() != 0,
    "is_leaf": lambda tensor: not tensor.is_leaf,
    "grad": lambda tensor: tensor.is_leaf and tensor.grad is not None,
    "grad_fn": lambda tensor: tensor.grad_fn is not None,
    "_is_view": lambda tensor: tensor._is_view(),
    "_base": lambda tensor: tensor._is_view(),
    "is_shared": lambda tensor: tensor.device.type == "cpu" and tensor.is_shared(),
    "is_inference": lambda tensor: tensor.is_inference(),
}


def described(call: Call, traced: TracedCode | None, weights: WeightsGuard) -> str:
    """What a graph's key needs beside the signature of a call: what the code that ran asks of the inputs; mostly "".

    Raises:
        CaptureError: the code asks for something that a trace would have answered otherwise.
    """
    if traced is None:
        return ""
    names = traced.own_names
    _refuse_own_attributes(call, traced)
    _refuse_parameters(call, names, weights)
    for name in names & _NOT_OF_STAND_INS.keys():
        if any(map(_NOT_OF_STAND_INS[name], (*call.tensors, *weights.tensors.values()))):
            raise CaptureError(f"its forward reads {name} of a tensor, which a trace cannot see")
    if call.inference and not _OF_INFERENCE.isdisjoint(names):
        raise CaptureError("its forward asks for the inference mode; call it under torch.no_grad()")
    strides = "".join(map(_layout, range(len(call.tensors)), call.signature.tensors, call.tensors))
    asks = strides if _OF_GRADIENTS.isdisjoint(names) else f"{strides} gradients={call.gradients}"
    if _OF_STAND_INS.isdisjoint(traced.names):
        return asks
    return ";".join(f"{tensor.stride()} {tensor.requires_grad}" for tensor in call.tensors) + asks


def _layout(i: int, spec: TensorSpec, tensor: torch.Tensor) -> str:
    """The strides of the i-th input, "" where they are the usual ones; the order of its dimensions where a size is dynamic."""
    strides = unusual_strides(tensor)
    if strides is None:
        return ""
    return f" {i}:{tuple(memory_order(tensor.shape, strides)) if spec.dynamic else strides}"


def _refuse_own_attributes(call: Call, traced: TracedCode) -> None:
    names = traced.own_names
    for spec, tensor in zip(call.signature.tensors, call.tensors):
        for name in vars(tensor):
            if name not in DOCUMENTATION and (traced.computes_names or name in names):
                raise CaptureError(f"input {spec.name} has an attribute {name!r} of its own, which a trace does not see")


def _refuse_parameters(call: Call, names: frozenset[str], weights: WeightsGuard) -> None:
    """Refuse inputs that are parameters where code could tell, and those that are weights of the network."""
    for spec, tensor in zip(call.signature.tensors, call.tensors):
        if type(tensor) is not torch.Tensor and (not names.isdisjoint({"Parameter", "__class__"}) or {"type", "Tensor"} <= names):
            raise CaptureError(f"its forward asks for the class of input {spec.name}, which a trace cannot see")
        if weights.holds(tensor):
            what = "a tensor that the network keeps too, a weight or another"
            raise CaptureError(f"input {spec.name} is {what}, which a trace does not see")
