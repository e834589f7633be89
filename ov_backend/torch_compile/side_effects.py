"""The side effects of a graph: writes to its inputs, returned views of them, random numbers.

They are determined by running the graph once over fake tensors while every operator is observed. A graph without side effects
is converted as it is. Others go through AOTAutograd, which turns writes and views into ordinary results and applies them
afterwards.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._guards import tracing
from torch._subclasses import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from ov_backend.core import tracing_lock
from ov_backend.core.errors import CaptureError, pass_on_signals
from ov_backend.core.fx_utils import is_random
from ov_backend.core.tensors import nested_tensors
from ov_backend.trace.capture.opaque_operators import WholeRecurrences
from ov_backend.trace.capture.slots import OF_PYTORCH
from ov_backend.trace.capture.trace import ASSERTIONS, why_untraceable
from ov_backend.trace.lowering.functionalize import hidden_writes


@dataclass(frozen=True)
class SideEffects:
    """The side effects of one graph: which inputs it writes to, and whether it draws random numbers or returns views
    (``aliases``).

    ``differentiable`` says for every tensor that it returns, in order, whether gradients flow through it.
    """

    written: tuple[int, ...]
    aliases: bool
    random: bool
    differentiable: tuple[bool, ...]


def analyze(
    function: Callable[..., Any], args: Sequence[Any], gradients: bool, autocast: torch.dtype | None = None
) -> SideEffects:
    """Run ``function(*args)`` over fake tensors and record its side effects; nothing is computed or written.

    ``gradients``: PyTorch records operations meanwhile. ``autocast``: the dtype of the CPU's autocast, None if it is off.

    Raises:
        CaptureError: it cannot run on fake tensors, because Python code or a shape depends on a tensor's values; or it runs an
            operator that is no part of a compiled graph.
    """
    try:
        with observed(args, gradients, autocast) as (fakes, observer):
            result = function(*fakes)
    except CaptureError:
        raise
    except Exception as error:  # a graph's operators may raise anything on fake tensors
        pass_on_signals(error)
        raise CaptureError(why_untraceable(error)) from error
    written = tuple(i for i, fake in enumerate(fakes) if isinstance(fake, torch.Tensor) and _storage(fake) in observer.written)
    outputs = list(nested_tensors(result))
    return SideEffects(written, _aliases(fakes, outputs), observer.random, tuple(o.requires_grad for o in outputs))


@contextlib.contextmanager
def observed(
    args: Sequence[Any], gradients: bool, autocast: torch.dtype | None = None
) -> Iterator[tuple[list[Any], Observer]]:
    """In this block operators compute nothing and are observed; yields fake arguments in the place of these."""
    mode, observer = FakeTensorMode(allow_non_fake_inputs=True), Observer()
    with tracing_lock.lock(), tracing(None), torch.inference_mode(False), torch.set_grad_enabled(gradients), mode:
        fakes = [_fake(mode, arg) for arg in args]
        whole = contextlib.nullcontext() if gradients else WholeRecurrences()  # which have no gradients
        with observer, whole, torch.autocast("cpu", dtype=autocast or torch.bfloat16, enabled=autocast is not None):
            yield fakes, observer


def _fake(mode: FakeTensorMode, value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    if value.is_inference():
        return mode.from_tensor(torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device))
    return mode.from_tensor(value)


def _storage(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _aliases(inputs: Sequence[Any], outputs: Sequence[torch.Tensor]) -> bool:
    """Whether two different tensors share memory; an input that is returned, or one tensor returned twice, does not count."""
    owners = {_storage(t): id(t) for t in inputs if isinstance(t, torch.Tensor)}
    passed = {id(t) for t in inputs}
    return any(id(o) not in passed and owners.setdefault(_storage(o), id(o)) != id(o) for o in outputs)


class Observer(TorchDispatchMode):
    """Records the memory that operators write to, and whether any operator draws random numbers.

    It raises :class:`CaptureError` for operators that a compiled graph would not run as PyTorch does.
    """

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()
        self.written: set[int] = set()
        self.random = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if refused := _refusal(func):
            raise CaptureError(f"{func} {refused}")
        for value in hidden_writes(func, args):
            self.written.add(_storage(value))
        for i, argument in enumerate(func._schema.arguments):
            if argument.alias_info is not None and argument.alias_info.is_write:
                value = args[i] if i < len(args) else kwargs.get(argument.name)
                self.written.update(_storage(t) for t in nested_tensors(value))
        self.random = self.random or is_random(func, args, kwargs)
        return func(*args, **kwargs)


def _refusal(func: Any) -> str:
    """Why a compiled graph would not run an operator as PyTorch does, or ""."""
    if not isinstance(func, torch._ops.OpOverload):
        return "is a higher-order operator"
    if getattr(func, "overloadpacket", None) in ASSERTIONS:
        return "raises where a value is not true"
    if func._schema.is_mutable and func.namespace not in OF_PYTORCH:
        return "is an operator of the program that writes to its arguments"
    return ""
