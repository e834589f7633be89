"""What one call of a network looks like: its tensors by name, and everything about the call that is static."""

from __future__ import annotations

import inspect
import json
import operator
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ov_backend.errors import CaptureError
from ov_backend.guards.autocast import answered_otherwise
from ov_backend.guards.pytree import Spec, flatten, restore
from ov_backend.tensors import TensorSpec

#: The classes of tensors by which nothing is computed otherwise.
_KINDS = frozenset({torch.Tensor, torch.nn.Parameter, getattr(torch.nn, "Buffer", torch.nn.Parameter)})


@dataclass(frozen=True)
class Signature:
    """Shapes and dtypes of all inputs, which optional ones are present, and every value that is not a tensor."""

    tensors: tuple[TensorSpec, ...]
    statics: str

    def __str__(self) -> str:
        return " ".join(map(str, self.tensors))


@dataclass(frozen=True)
class Call:
    """One call, taken apart: positional and keyword spellings of the same call are equal here.

    Attributes:
        signature: what is static about it.
        tensors: its inputs, each object once.
        spec: the arguments around them.
        gradients: whether PyTorch would record operations, if any tensor asked for it.
        inference: whether the call was made under ``torch.inference_mode()``.
        unlike_trace: names by which code asks for autocast and a trace would answer otherwise.
    """

    signature: Signature
    tensors: tuple[torch.Tensor, ...]
    spec: Spec
    gradients: bool = False
    inference: bool = False
    unlike_trace: frozenset[str] = frozenset()

    def arguments(self, tensors: Sequence[torch.Tensor]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The call's arguments, with other tensors in the place of its own."""
        return restore(self.spec["args"], tensors), restore(self.spec["kwargs"], tensors)


class Binder:
    """Takes calls of one forward apart by the names of its parameters."""

    def __init__(self, forward: Callable[..., Any]) -> None:
        self._forward = forward
        outermost = getattr(forward, "__func__", forward)
        self._function = inspect.unwrap(outermost)
        #: The function around the forward may look at which arguments were given, and how.
        self._is_wrapped = self._function is not outermost
        self._update()

    def _update(self) -> None:
        self._state = self._defaults()
        self._signature = inspect.signature(self._forward)

    def _defaults(self) -> tuple[Any, ...]:
        """What the signature depends on; it may be exchanged on the function."""
        names = ("__code__", "__defaults__")
        keywords = getattr(self._function, "__kwdefaults__", None) or {}
        return (*(getattr(self._function, name, None) for name in names), *keywords, *keywords.values())

    def __call__(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Call:
        """Take one call apart.

        Raises:
            CaptureError: an argument has a type that no key can describe, or lives on another device than the CPU.
            TypeError: the arguments do not fit the forward, exactly as when calling it.
        """
        defaults = self._defaults()
        if len(defaults) != len(self._state) or any(map(operator.is_not, defaults, self._state)):
            self._update()
        bound = self._signature.bind(*args, **kwargs)
        given = tuple(bound.arguments)
        bound.apply_defaults()
        leaves, spec = flatten(bound.arguments)
        for name, tensor in leaves:
            if type(tensor) not in _KINDS:
                raise CaptureError(f"input {name} is a {type(tensor).__name__}, a class of tensors that may compute otherwise")
            if tensor.device.type != "cpu":
                raise CaptureError(f"input {name} is on {tensor.device}; only tensors in the host's memory can be passed on")
            if tensor.requires_grad and torch.is_grad_enabled():
                raise CaptureError(f"input {name} asks for gradients, which a compiled graph does not record")
        tensors = tuple(tensor for _, tensor in leaves)
        described = tuple(TensorSpec.of(name, tensor) for name, tensor in leaves)
        modes = torch.is_grad_enabled(), torch.is_inference_mode_enabled(), answered_otherwise()
        statics = json.dumps(spec["dict"]) + _modes() + "".join(f" {name}" for name in sorted(modes[-1]))
        if not self._is_wrapped:
            return Call(Signature(described, statics), tensors, self._split(spec, bound.arguments), *modes)
        statics += f" given={len(args)} {sorted(kwargs)}"
        return Call(Signature(described, statics), tensors, self._split(spec, given, kwargs), *modes)

    def _split(self, spec: Spec, names: Iterable[str], keywords: Container[str] = ()) -> Spec:
        """Arrange the named arguments again as positional and keyword ones.

        Args:
            spec: of all arguments.
            names: of those that are passed on.
            keywords: names of those that are passed on by keyword, whatever their parameters allow.
        """
        items = spec["dict"]
        args: list[Spec] = []
        kwargs: dict[str, Spec] = {}
        for name in names:
            kind = self._signature.parameters[name].kind
            if kind is inspect.Parameter.VAR_POSITIONAL:
                args += items[name]["list"]
            elif kind is inspect.Parameter.VAR_KEYWORD:
                kwargs.update(items[name]["dict"])
            elif kind is inspect.Parameter.KEYWORD_ONLY or name in keywords:
                kwargs[name] = items[name]
            else:
                args.append(items[name])
        return {"args": {"list": args, "class": "builtins:tuple"}, "kwargs": {"dict": kwargs}}


def _modes() -> str:
    """Modes outside the call that change what a forward computes."""
    autocast = f" autocast={torch.get_autocast_cpu_dtype()}" if torch.is_autocast_cpu_enabled() else ""
    if torch.is_autocast_enabled():  # of another device
        autocast += f" other={torch.get_autocast_gpu_dtype()}"
    default = torch.get_default_dtype()
    return autocast + (f" default={default}" if default is not torch.float32 else "")
