"""The fast paths of PyTorch's transformers: one kernel that eager calls, and of which a trace sees the operators instead.

``torch.nn.TransformerEncoderLayer`` and ``torch.nn.MultiheadAttention`` take it in eval mode where no gradient is recorded. Both
ways mostly give the same numbers; where not, the call stays in PyTorch, or the trace is given the operators of the fast path.
"""

from __future__ import annotations

import sys
from types import FrameType, FunctionType, MethodType
from typing import Any

import torch

from ov_backend.core.patching import unwrap
from ov_backend.trace.capture.impure import module_of

_TRANSFORMER_LAYER, _ATTENTION = torch.nn.TransformerEncoderLayer, torch.nn.MultiheadAttention
#: Where forwards of PyTorch stand that, in eager, hand everything to one kernel, the "fast path", once has_torch_function has
#: answered false. The WebUI puts a forward of its own in their place, which calls them.
_FAST_PATHS = frozenset({"torch.nn.modules.activation", "torch.nn.modules.transformer"})
#: The parts of a layer of a transformer of which the fast path reads the weights, and which it does not call.
_PARTS = {
    **dict.fromkeys(("linear1", "linear2"), torch.nn.Linear),
    **dict.fromkeys(("norm1", "norm2"), torch.nn.LayerNorm),
    **dict.fromkeys(("dropout", "dropout1", "dropout2"), torch.nn.Dropout),
    "self_attn": torch.nn.MultiheadAttention,
}
#: The module whose functions stand in for methods while torch traces.
_FX = "torch.fx._symbolic_trace"
_HOOKS = ("_forward_hooks", "_forward_pre_hooks")


def takes_fast_path(frame: FrameType) -> bool:
    """Whether code that asks for overrides is one of these forwards, and would take its fast path outside of a trace."""
    if module_of(frame) not in _FAST_PATHS or "tensor_args" not in frame.f_locals:
        return False
    tensors = [tensor for tensor in frame.f_locals["tensor_args"] if isinstance(tensor, torch.Tensor)]
    return not (torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors))


def beside_fast_path(frame: FrameType) -> str:
    """What the fast path answers otherwise than the operators that a trace sees, or "" where both give the same numbers."""
    own = frame.f_locals
    if own.get("src_key_padding_mask") is not None or own.get("key_padding_mask") is not None:
        return "attention with padding"
    asking = own["self"]
    if isinstance(asking, _TRANSFORMER_LAYER):
        return _changed_part(asking)
    return "other masks" if _is_replaced(asking, "merge_masks", _ATTENTION) else ""


def _changed_part(layer: torch.nn.TransformerEncoderLayer) -> str:
    """What of a transformer's layer is not as it was made, so that its fast path passes it by; mostly ""."""
    activation, is_relu = layer.activation, layer.activation_relu_or_gelu == 1
    if activation is not (torch.nn.functional.relu if is_relu else torch.nn.functional.gelu) and (
        _is_changed(activation, torch.nn.ReLU if is_relu else torch.nn.GELU)
        or getattr(activation, "approximate", "none") != "none"
    ):
        return "another activation"
    for name in ("_sa_block", "_ff_block"):
        if _is_replaced(layer, name, _TRANSFORMER_LAYER):
            return f"another {name}"
    if _is_replaced(layer.self_attn, "merge_masks", _ATTENTION):
        return "other masks"
    parts = [(name, getattr(layer, name, None), part) for name, part in _PARTS.items()]
    changed = [name for name, value, part in parts if _is_changed(value, part)]
    return f"another {changed[0]}" if changed else ""


def _is_changed(part: object, kind: type[torch.nn.Module]) -> bool:
    """Whether a part of a layer computes something else than a module of this kind in eval mode."""
    if isinstance(part, torch.nn.Identity) and kind is torch.nn.Dropout:
        return False
    if not isinstance(part, kind) or _is_replaced(part, "forward", kind):
        return True
    if any(_is_replaced(part, name, torch.nn.Module) for name in ("__call__", "_call_impl")):
        return True
    return part.training or any(vars(part).get(name) for name in _HOOKS)


def _is_replaced(module: torch.nn.Module, name: str, kind: type[torch.nn.Module]) -> bool:
    """Whether a method is another than the one that PyTorch wrote for a class; our own patches replace nothing here."""
    method = unwrap(vars(module).get(name, getattr(type(module), name, None)))
    if isinstance(method, MethodType) and method.__self__ is module:
        method = method.__func__
    method = unwrap(method)
    while isinstance(method, FunctionType) and method.__globals__.get("__name__") == _FX:
        method = unwrap(getattr(method, "__wrapped__", None))  # the trace's own; its variables may be a copy of the module's
    return not isinstance(method, FunctionType) or method.__globals__ is not vars(sys.modules[kind.__module__])


def fast_attention(*args: Any, attn_mask: torch.Tensor | None = None, is_causal: bool = False, **kwargs: Any) -> Any:
    """Attention with the numbers of PyTorch's fast path, which takes a mask for true where it is not 0, and for nothing else.

    A row that masks everything gives NaN there, and the hint that a mask is causal says nothing. Its result is contiguous with
    the batch first, which here is the second dimension.
    """
    function = torch.nn.functional.multi_head_attention_forward
    if attn_mask is None:
        result, weights = function(*args, **kwargs)
        return _batch_outermost(result), weights
    mask = torch.zeros_like(attn_mask).masked_fill(attn_mask != 0, float("-inf"))
    result, weights = function(*args, attn_mask=mask, **kwargs)  # [length, batch, channels]
    highest = mask.amax(-1)  # of each row; OpenVINO has no conversion for ``all``
    highest = highest.view(result.shape[1], -1, result.shape[0]).amin(1).t() if highest.dim() == 2 else highest[:, None]
    return _batch_outermost(result.masked_fill((highest != 0)[..., None], float("nan"))), weights


def _batch_outermost(result: torch.Tensor) -> torch.Tensor:
    return result.transpose(0, 1).clone(memory_format=torch.contiguous_format).transpose(0, 1)
