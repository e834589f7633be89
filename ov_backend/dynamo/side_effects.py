"""What a graph does besides computing: writing to its inputs, handing back views of them, drawing random numbers.

Found by running it once over fake tensors, with every operator watched. A graph that does nothing of the kind can be
converted as it is; one that does goes by way of AOTAutograd, which turns writes and views into plain results and makes
them good afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._guards import tracing
from torch._subclasses import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from ov_backend.errors import CaptureError
from ov_backend.lowering.functionalize import hidden_writes
from ov_backend.tensors import nested_tensors


@dataclass(frozen=True)
class SideEffects:
    """What one graph does besides computing.

    Attributes:
        written: indices of the inputs it writes to.
        aliases: an output is a view of an input, or of another output.
        random: it draws random numbers.
        differentiable: for every tensor it returns, in order, whether gradients flow through it.
    """

    written: tuple[int, ...]
    aliases: bool
    random: bool
    differentiable: tuple[bool, ...]


def analyze(function: Callable[..., Any], args: Sequence[Any], gradients: bool) -> SideEffects:
    """Run ``function(*args)`` over fake tensors and note what it does; nothing is computed or written.

    Raises:
        CaptureError: it cannot be run that way, because Python or a shape depends on a tensor's values.
    """
    try:
        mode, watcher = FakeTensorMode(allow_non_fake_inputs=True), _Watcher()
        with tracing(None), torch.inference_mode(False), torch.set_grad_enabled(gradients), mode:
            fakes = [_fake(mode, arg) for arg in args]
            with watcher:
                result = function(*fakes)
    except Exception as error:  # whatever a graph's operators raise on fake tensors
        lines = str(error).strip().splitlines() or ["no message"]
        raise CaptureError(f"it cannot be traced: {type(error).__name__}: {lines[0]}") from error
    written = tuple(i for i, fake in enumerate(fakes) if isinstance(fake, torch.Tensor) and _storage(fake) in watcher.written)
    outputs = list(nested_tensors(result))
    return SideEffects(written, _aliases(fakes, outputs), watcher.random, tuple(o.requires_grad for o in outputs))


def _fake(mode: FakeTensorMode, value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    if value.is_inference():
        return mode.from_tensor(torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device))
    return mode.from_tensor(value)


def _storage(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _aliases(inputs: Sequence[Any], outputs: Sequence[torch.Tensor]) -> bool:
    """Whether two different tensors share memory; the same tensor handed on or twice is no matter."""
    owners = {_storage(t): id(t) for t in inputs if isinstance(t, torch.Tensor)}
    passed = {id(t) for t in inputs}
    return any(id(o) not in passed and owners.setdefault(_storage(o), id(o)) != id(o) for o in outputs)


class _Watcher(TorchDispatchMode):
    """Notes the memory that operators write to, and whether any draws random numbers."""

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
