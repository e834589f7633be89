"""A request to compile a graph for a call, its keys, and its result."""

from __future__ import annotations

import threading
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch

from ov_backend.core.errors import ConversionError, OVBackendError
from ov_backend.core.settings import Settings
from ov_backend.core.tensors import TensorSpec, nested_tensors
from ov_backend.engine.ahead.ahead import Unverified
from ov_backend.guards.code import Guard
from ov_backend.guards.pytree import Spec, restore
from ov_backend.guards.signature import Call, Signature
from ov_backend.guards.weights import Placement
from ov_backend.guards.what_differed import argument_in_words, in_words
from ov_backend.model.conversion.model import UnsupportedNodes
from ov_backend.model.runtime.program import CompiledProgram
from ov_backend.model.transformations.quantize import Rewrite


class Refusals(dict[Hashable, OVBackendError]):
    """Errors of graphs that cannot be compiled, by their keys; these are not tried again."""

    def add(self, key: Hashable, error: OVBackendError) -> None:
        """Record why a graph cannot be compiled; without the traceback, whose frames would keep tensors alive."""
        kind = ConversionError if isinstance(error, UnsupportedNodes) else type(error)
        self[key] = kind(str(error))

    def check(self, *keys: Hashable) -> None:
        """Raise the error that is recorded for one of these keys, if any."""
        for key in keys:
            if error := self.get(key):
                raise type(error)(str(error))


class BlockGone(OVBackendError):
    """A block whose call was recorded is no longer in the network."""


class Superseded(Exception):
    """Weights or code changed while a graph was compiled for them."""


class State(NamedTuple):
    """What decides within the process to which graph a trace leads.

    ``code`` is the fingerprint of everything that the forward can read, ``layout`` a digest of the weights' names, shapes and
    dtypes, ``asked`` what the code asks of its inputs. ``module`` is a number: another module lies at other addresses, by which a
    program's forward may go; it is 0 where only packages ran, whose trace holds for every equal module.
    """

    signature: Signature
    code: str
    layout: str
    asked: str
    host: str
    settings: str
    module: int

    def first_difference(self, before: State) -> str:
        """What differs first from another state, apart from the code; "" if nothing does."""
        if self.signature.statics != before.signature.statics:
            return argument_in_words(before.signature.statics, self.signature.statics)
        if self.layout != before.layout:  # it is a digest
            return "names, shapes or dtypes of its weights"
        names = "what it asks of its inputs", "the host's settings", "the settings"
        pairs = zip(names, map(str, before[3:]), map(str, self[3:]))
        return next((f"{name}: {in_words(was, now)}" for name, was, now in pairs if was != now), "")


class CompiledKey(NamedTuple):
    """The key of a compiled graph within the process.

    The state stands for the text before a trace has told that. The address is that of the weights' memory; 0 for what is compiled
    and owns all that it reads.
    """

    text: str
    state: State | None
    weights: str
    settings: str
    form: str = ""
    address: int = 0

    def anywhere(self) -> CompiledKey:
        """The key without the address."""
        return self._replace(address=0)

    def of(self, text: str) -> CompiledKey:
        """The key, now that the text is known."""
        return self._replace(text=text, state=None)


@dataclass(frozen=True)
class Form:
    """The form in which a graph is compiled.

    Its name is a part of the key: "" for the device's own precision, "observing 1", or "int8" with the recipe's digest.
    """

    settings: Settings
    name: str = ""
    rewrite: Rewrite | None = None


class Group(NamedTuple):
    """Compiled graphs that one call of a network needs together: those of its blocks."""

    network: str
    signature: Signature

    @classmethod
    def of(cls, network: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Group:
        """The group of a network's call with these arguments."""
        tensors = nested_tensors([*args, *kwargs.values()])
        specs = (TensorSpec(str(i), tuple(tensor.shape), str(tensor.dtype)) for i, tensor in enumerate(tensors))
        return cls(network, Signature(tuple(specs), ""))


@dataclass(frozen=True)
class CompileRequest:
    """What to compile, with the state at the time of the call.

    Attributes:
        kind: of the call, see :func:`ov_backend.model.compiler.kind_of_call`.
        guard: watches what the graph depends on.
        generation: counts changes of the weights.
        epoch: of the resources; it grows when everything is cleared.
        abandoned: set when the caller no longer waits; what changes during the compile is its doing then.
        why: what differs first from the last trace of such a call, or "".
        output: the description of a call's result, where a trace has told it.
        autocast: the dtype of PyTorch's autocast in the caller's thread, see :func:`ov_backend.guards.autocast.of_program`.
        autocasts: what else that thread keeps of autocast, see :func:`ov_backend.guards.autocast.state`.
    """

    call: Call
    state: State
    compiled_key: CompiledKey
    kind: str
    weights: Mapping[str, torch.Tensor]
    form: Form
    guard: Guard
    generation: int
    epoch: int
    abandoned: threading.Event
    autocast: torch.dtype | None
    autocasts: list[Any]
    why: str = ""
    output: Spec | None = None

    @property
    def settings(self) -> Settings:
        """The settings of this compile."""
        return self.form.settings

    @property
    def text(self) -> str:
        """Of the program, or ""."""
        return self.compiled_key.text

    def led_to(self, text: str, output: Spec | None = None) -> CompileRequest:
        """The request, now that a trace has told the text, and what describes a call's result; a guess tells the text alone."""
        return replace(self, compiled_key=self.compiled_key.of(text), output=output)


@dataclass
class CompiledEntry:
    """A compiled program and what belongs to it.

    Attributes:
        output: the description of a call's result over the program's flat outputs; what is compiled ahead of every trace gets it
            when a trace has led to it.
        placement: the live weights of the network that used it last, which is the one named.
        address: of the weights that it was compiled from.
        unverified: set while it was compiled ahead and no call has asked for it: see :class:`Unverified`.
        state: what a call's result depends on beside the call and the form: digest of the weights, text, and the host.
        tried: the results of observed calls that it has computed already, by their numbers.
    """

    program: CompiledProgram
    output: Spec | None
    weights: str
    placement: Placement
    network: str
    unverified: Unverified | None = None
    form: str = ""
    signature: Signature | None = None
    address: int = 0
    state: tuple[str, str, str] = ("", "", "")
    tried: dict[int, list[torch.Tensor]] = field(default_factory=dict)

    def result(self, outputs: Sequence[torch.Tensor]) -> Any:
        """A call's result, of the program's flat outputs."""
        assert self.output is not None
        return restore(self.output, outputs)

    @property
    def is_unused_int8(self) -> bool:
        """Whether it is in 8 bits, was compiled ahead, and no call has asked for it yet."""
        return self.unverified is not None and self.form.startswith("int8")
