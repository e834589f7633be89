"""Slots in the place of weights, where operators use them; the module itself is not touched."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch._C._functorch import get_unwrapped, is_functorch_wrapped_tensor
from torch._subclasses import FakeTensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten, tree_map_only

from ov_backend.guards.describe import SCALARS, TORCH_VALUES
from ov_backend.trace.capture.fast_paths import fast_attention
from ov_backend.trace.capture.observer import Observer

#: What PyTorch's functions take and do not call; other arguments may have code of their own.
_KNOWN = (*SCALARS, *TORCH_VALUES, torch.Tensor, torch.SymInt, torch.SymFloat, torch.SymBool, torch.Generator, slice, np.ndarray)

_ALIGNED = getattr(torch, "_nested_tensor_from_mask_left_aligned", None)
#: What sets the data of a tensor, which gives it other memory; no operator shows that.
_SETS_DATA = torch.Tensor.data.__set__
#: Namespaces of operators.
OF_PYTORCH = frozenset({"aten", "prim", "prims", "quantized", "quantized_decomposed", "torch", "torchvision"})


def _is_known(value: Any) -> bool:
    return type(value) in SCALARS or isinstance(value, _KNOWN)


def _is_of_program(function: Any) -> bool:
    """Whether an operator is none of PyTorch's own: its kernel may be Python code, which reads what it likes."""
    if isinstance(function, torch._ops.OpOverload):
        return function.namespace not in OF_PYTORCH
    return isinstance(function, torch._ops.OpOverloadPacket) and function._qualified_op_name.partition("::")[0] not in OF_PYTORCH


class Slots(TorchFunctionMode):
    """While active, in this thread alone, every operation on a weight sees the slot instead.

    ``slots`` are pairs of both; ``observer`` is paused while torch's own code runs.
    """

    def __init__(self, slots: Sequence[tuple[torch.Tensor, torch.Tensor]], observer: Observer) -> None:
        super().__init__()
        self._observer = observer
        #: Real tensors that are no weights: nobody could look at them before a later call.
        self.strays: list[torch.Tensor] = []
        self._slots = {id(weight): slot for weight, slot in slots}
        self._weights = [weight for weight, _ in slots]  # an id is only good as long as its object lives

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func == _SETS_DATA:
            self._observer.effects.append("sets the data of a tensor")
        watched = all(map(_is_known, tree_flatten((args, kwargs))[0])) and not _is_of_program(func)
        with self._observer.paused() if watched else contextlib.nullcontext():
            args, kwargs = tree_map_only(torch.Tensor, self._slot, (args, kwargs))
            if func is torch.nn.functional.pad:
                return _pad(*args, **kwargs)
            if func is _ALIGNED:  # whether a mask is aligned is known at the call only: what follows here decides
                return True
            if func is torch.nn.functional.multi_head_attention_forward and self._observer.fast_attention:
                self._observer.fast_attention = False
                return fast_attention(*args, **kwargs)
            return func(*args, **kwargs)

    def _slot(self, tensor: torch.Tensor) -> torch.Tensor:
        slot = self._slots.get(id(tensor))
        if slot is None and type(tensor) in (torch.Tensor, torch.nn.Parameter) and not isinstance(_innermost(tensor), FakeTensor):
            self.strays.append(tensor)
        return tensor if slot is None else slot


def _innermost(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor that ``torch.func`` has wrapped, once for each of its functions that is running."""
    while is_functorch_wrapped_tensor(tensor):
        tensor = get_unwrapped(tensor)
    return tensor


def _pad(x: torch.Tensor, pad: Sequence[int], mode: str = "constant", value: float | None = None) -> torch.Tensor:
    """``torch.nn.functional.pad``; a circular one by joining pieces, where torch would write them into empty memory."""
    if mode != "circular" or min(pad) < 0:
        return torch.nn.functional.pad(x, list(pad), mode, value)
    for i, (before, after) in enumerate(zip(pad[::2], pad[1::2])):
        size, dim = x.shape[-1 - i], x.dim() - 1 - i
        x = torch.cat([x.narrow(dim, size - before, before), x, x.narrow(dim, 0, after)], dim) if before or after else x
    return x
