"""What one call of a network looks like: its tensors by name, and everything about the call that is static."""

from __future__ import annotations

import inspect
import json
import operator
import re
from collections import OrderedDict
from collections.abc import Callable, Container, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from ov_backend.core.errors import CaptureError, pass_on_signals
from ov_backend.core.signatures import signature_of
from ov_backend.core.tensors import FROM_NAME, TensorSpec
from ov_backend.guards import autocast
from ov_backend.guards.pytree import Spec, flatten, restore

#: How many arguments of a wrapped forward were given by position, and which by keyword, at the end of a signature's text.
_GIVEN = re.compile(r" given=(\d+) ([\w ]*)$")
#: The most forms of calls that are remembered.
_MAX_FORMS = 256
#: The classes of arguments that are no tensors and that nobody can change.
_PLAIN = frozenset({bool, int, float, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format})
#: The classes of tensors by which nothing is computed otherwise.
_KINDS = frozenset({torch.Tensor, torch.nn.Parameter, getattr(torch.nn, "Buffer", torch.nn.Parameter)})


@dataclass(frozen=True)
class Signature:
    """Shapes and dtypes of all inputs, which optional ones are present, and every value that is not a tensor."""

    tensors: tuple[TensorSpec, ...]
    statics: str

    def __str__(self) -> str:
        return " ".join(map(str, self.tensors))

    def __hash__(self) -> int:
        """It is asked for several times at every call, and of the same few signatures."""
        known: int | None = self.__dict__.get("_hash")
        if known is None:
            known = hash((self.tensors, self.statics))
            object.__setattr__(self, "_hash", known)
        return known

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.tensors, self.statics)  # another process hashes otherwise


@dataclass(frozen=True)
class Call:
    """One call, taken apart: positional and keyword spellings of the same call are equal here."""

    signature: Signature
    #: Its inputs, each object once.
    tensors: tuple[torch.Tensor, ...]
    #: The arguments around them.
    spec: Spec
    #: Whether PyTorch would record operations, if any tensor asked for it; whether ``torch.inference_mode()`` is active.
    gradients: bool = False
    inference: bool = False

    def arguments(self, tensors: Sequence[torch.Tensor]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The call's arguments, with other tensors in the place of its own."""
        return restore(self.spec["args"], tensors), restore(self.spec["kwargs"], tensors)


class _Form(NamedTuple):
    """What calls have in common that differ in the content of their tensors only; ``order`` says where these are given."""

    signature: Signature
    order: tuple[int, ...]
    spec: Spec


def _kinds(values: Sequence[Any]) -> tuple[Hashable, ...] | None:
    """All that a signature tells of arguments, and is checked of them; None where one is a container, or a tensor given twice."""
    kinds: list[Hashable] = []
    tensors: set[int] = set()
    for value in values:
        kind = type(value)
        if kind in _KINDS and id(value) not in tensors and not value.is_nested:
            tensors.add(id(value))
            kinds.append((kind, value.shape, value.dtype, value.layout, value.device, value.requires_grad))
        elif kind in _PLAIN:
            kinds.append((kind, repr(value) if kind is float else value))  # 0.0 equals -0.0
        else:
            return None
    return tuple(kinds)


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
        self._forms: dict[Hashable, _Form] = {}
        self._state = self._defaults()
        self._signature = signature_of(self._forward)

    def _defaults(self) -> tuple[Any, ...]:
        """What the signature depends on; it may be exchanged on the function."""
        names = ("__code__", "__defaults__")
        keywords = getattr(self._function, "__kwdefaults__", None) or {}
        return (*(getattr(self._function, name, None) for name in names), *keywords, *keywords.values())

    def __call__(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Call:
        """Take one call apart; arguments that do not fit raise the ``TypeError`` that the forward does."""
        defaults = self._defaults()
        if len(defaults) != len(self._state) or any(map(operator.is_not, defaults, self._state)):
            self._update()
        gradients, inference, modes = torch.is_grad_enabled(), torch.is_inference_mode_enabled(), _modes()
        values = (*args, *kwargs.values())
        key = len(args), *kwargs, gradients, inference, modes, _kinds(values)
        form = self._forms.get(key)
        if form is not None:
            return Call(form.signature, tuple(values[i] for i in form.order), form.spec, gradients, inference)
        call = self._taken_apart(args, kwargs, modes)
        if key[-1] is not None:
            self._remember(key, values, call)
        return call

    def like(self, signature: Signature) -> Call | None:
        """A call of a signature, with zeros; None where its text does not tell the arguments, or the modes are others now."""
        try:
            spec, end = json.JSONDecoder().raw_decode(signature.statics)
            zeros = [torch.zeros(each.shape, dtype=FROM_NAME[each.dtype]) for each in signature.tensors]
            values = OrderedDict(restore({"dict": spec}, zeros))
            if given := _GIVEN.search(signature.statics, end):
                positional, keywords = list(values.values())[: int(given[1])], given[2].split()
                call = self(tuple(positional), {name: values[name] for name in keywords})
            else:
                bound = inspect.BoundArguments(self._signature, values)
                call = self(bound.args, bound.kwargs)
        except (ValueError, LookupError, TypeError, AttributeError, CaptureError) as error:  # a file may say anything
            pass_on_signals(error)
            return None
        return call if call.signature == signature else None

    def _remember(self, key: Hashable, values: Sequence[Any], call: Call) -> None:
        """Take note of a call, unless a default is one of its tensors."""
        order = tuple(next((i for i, value in enumerate(values) if value is tensor), -1) for tensor in call.tensors)
        if -1 not in order:
            if len(self._forms) >= _MAX_FORMS:
                self._forms.clear()
            self._forms[key] = _Form(call.signature, order, call.spec)

    def _taken_apart(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], modes: str) -> Call:
        bound = self._signature.bind(*args, **kwargs)
        given = tuple(bound.arguments)
        bound.apply_defaults()
        leaves, spec = flatten(bound.arguments)
        for name, tensor in leaves:
            if type(tensor) not in _KINDS:
                raise CaptureError(f"input {name} is a {type(tensor).__name__}, a class of tensors that may compute otherwise")
            if tensor.is_nested:
                raise CaptureError(f"input {name} is a nested tensor, which OpenVINO does not have")
            if tensor.device.type != "cpu":
                raise CaptureError(f"input {name} is on {tensor.device}; only tensors in the host's memory can be passed on")
            if tensor.requires_grad and torch.is_grad_enabled():
                raise CaptureError(f"input {name} asks for gradients, which a compiled graph does not record")
        tensors = tuple(tensor for _, tensor in leaves)
        described = tuple(TensorSpec.of(name, tensor) for name, tensor in leaves)
        state = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
        statics = json.dumps(spec["dict"]) + modes
        if not self._is_wrapped:
            return Call(Signature(described, statics), tensors, self._split(spec, bound.arguments), *state)
        statics += f" given={len(args)} {' '.join(sorted(kwargs))}"
        return Call(Signature(described, statics), tensors, self._split(spec, given, kwargs), *state)

    def _split(self, spec: Spec, names: Iterable[str], keywords: Container[str] = ()) -> Spec:
        """Arrange the named arguments again as positional ones, and as keywords where only these are allowed or were given."""
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
    of_program = autocast.of_program()
    text = "" if of_program is None else f" autocast={of_program}"
    state = autocast.state()
    if state != autocast.OF_NEW_THREAD:
        text += f" autocasts={state}"
    default = torch.get_default_dtype()
    return text + (f" default={default}" if default is not torch.float32 else "")
