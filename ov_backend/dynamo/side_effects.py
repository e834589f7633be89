"""The side effects of a graph: writes to its inputs, returned views of them, random numbers.

They are determined by running the graph once over fake tensors while every operator is observed. A graph without side effects
is converted as it is. Others go through AOTAutograd, which turns writes and views into ordinary results and applies them
afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._guards import tracing
from torch._subclasses import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from ov_backend.errors import CaptureError, first_line
from ov_backend.lowering.functionalize import hidden_writes
from ov_backend.tensors import nested_tensors


@dataclass(frozen=True)
class SideEffects:
    """The side effects of one graph, and its differentiable results.

    Attributes:
        written: indices of the inputs that it writes to.
        aliases: an output is a view of an input, or of another output.
        random: it draws random numbers.
        differentiable: for every tensor that it returns, in order, whether gradients flow through it.
    """

    written: tuple[int, ...]
    aliases: bool
    random: bool
    differentiable: tuple[bool, ...]


def analyze(function: Callable[..., Any], args: Sequence[Any], gradients: bool) -> SideEffects:
    """Run ``function(*args)`` over fake tensors and record its side effects; nothing is computed or written.

    Raises:
        CaptureError: it cannot run on fake tensors, because Python code or a shape depends on a tensor's values.
    """
    try:
        mode, observer = FakeTensorMode(allow_non_fake_inputs=True), _Observer()
        with tracing(None), torch.inference_mode(False), torch.set_grad_enabled(gradients), mode:
            fakes = [_fake(mode, arg) for arg in args]
            with observer:
                result = function(*fakes)
    except Exception as error:  # a graph's operators may raise anything on fake tensors
        raise CaptureError(f"it cannot be traced: {type(error).__name__}: {first_line(error)}") from error
    written = tuple(i for i, fake in enumerate(fakes) if isinstance(fake, torch.Tensor) and _storage(fake) in observer.written)
    outputs = list(nested_tensors(result))
    return SideEffects(written, _aliases(fakes, outputs), observer.random, tuple(o.requires_grad for o in outputs))


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


class _Observer(TorchDispatchMode):
    """Records the memory that operators write to, and whether any operator draws random numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.written: set[int] = set()
        self.random = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        for value in hidden_writes(func, args):
            self.written.add(_storage(value))
        for i, argument in enumerate(func._schema.arguments):
            if argument.alias_info is not None and argument.alias_info.is_write:
                value = args[i] if i < len(args) else kwargs.get(argument.name)
                self.written.update(_storage(t) for t in nested_tensors(value))
        self.random = self.random or torch.Tag.nondeterministic_seeded in func.tags
        return func(*args, **kwargs)
