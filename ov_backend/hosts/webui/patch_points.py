"""By which functions of which classes networks are called, and one network of a model; each host lists its own.

The functions are patched on the classes, so that every object that is called in the middle of a generation (a refiner, a
hires checkpoint, a model loaded for one prompt) is reached; each call decides whether its instance is accelerated.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from types import MethodType, SimpleNamespace
from typing import Any
from weakref import WeakKeyDictionary

import torch

from ov_backend.core.patching import unwrap

Arguments = tuple[tuple[Any, ...], dict[str, Any]]
_WAYS: WeakKeyDictionary[torch.nn.Module, SimpleNamespace] = WeakKeyDictionary()


def way_to(weights: str, owner: torch.nn.Module) -> SimpleNamespace:
    """What stands in for an owner of whose parts its function calls one: the modules on the way to it, with their plain values.

    Of the owner itself a look at code and state goes through all parts. Beside its text encoder the WebUI has an object there
    that leads to its tokenizer, its settings and its pages.
    """
    way = _WAYS.setdefault(owner, SimpleNamespace())
    name, _, rest = weights.partition(".")
    values: dict[str, Any] = {key: value for key, value in vars(owner).items() if isinstance(value, (bool, int, float, str))}
    part = owner.get_submodule(name)
    values[name] = way_to(rest, part) if rest else part
    if vars(way) != values:  # a guard watches it
        vars(way).clear()
        vars(way).update(values)
    return way


@lru_cache(maxsize=16)
def _takes(function: Callable[..., Any], name: str) -> bool:
    """Whether a function has a parameter; each look at a model's networks asks it of the same functions."""
    return name in inspect.signature(function).parameters


def as_they_are(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
    """The arguments of a call, for a function whose network takes the same."""
    return args, kwargs


def itself(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function, where it can be traced as it is."""
    return function


def on_a_copy(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that writes to its first input, called with a copy of it; the caller has no further use for the written one."""
    return partial(_on_a_copy, function)


def _on_a_copy(function: Callable[..., Any], first: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    return function(first.clone(), *args, **kwargs)


@dataclass(frozen=True)
class PatchPoint:
    """One function by which networks are called.

    Attributes:
        module: where the class is.
        class_name: the class.
        function: the function's name.
        switch: the choice that switches these networks.
        weights: path from an instance to the module that owns the weights ("" is the instance itself).
        needs: a parameter that the function must have; without it, this version's function is a different one.
        arguments: from the arguments of a call, those that the network is called with: tensors, alone or in lists and dicts.
        traced: from the function, bound to its object, what the network computes, called with these.
    """

    module: str
    class_name: str
    function: str
    switch: str
    weights: str = ""
    needs: str = ""
    arguments: Callable[[tuple[Any, ...], dict[str, Any]], Arguments] = as_they_are
    traced: Callable[[Callable[..., Any]], Callable[..., Any]] = itself

    @property
    def owner(self) -> Any:
        """The class, or None where its package is not loaded or its function lacks what is needed."""
        owner = getattr(sys.modules.get(self.module), self.class_name, None)
        if owner is None or (self.needs and not _takes(unwrap(getattr(owner, self.function)), self.needs)):
            return None
        return owner


def hidden_states_or_none(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
    """The arguments of a text encoder's stack: the WebUI passes a number there, and each would be a graph of its own."""
    if "output_hidden_states" in kwargs:
        kwargs = {**kwargs, "output_hidden_states": bool(kwargs["output_hidden_states"])}
    return args, kwargs


#: The text encoder of transformers: its layers alone, for token embeddings depend on data of the prompt (textual inversion).
CLIP = PatchPoint(
    *("transformers.models.clip.modeling_clip", "CLIPEncoder", "forward", "text_encoder"),
    # since transformers 5 the caller collects hidden states, and would get none from a compiled stack
    needs="output_hidden_states",
    arguments=hidden_states_or_none,
)


@dataclass(frozen=True)
class HostNetwork:
    """One network of one of the WebUI's models.

    Attributes:
        role: "unet", "vae_encode", "vae_decode", "text_encoder" or "text_encoder_2".
        switch: the choice that switches it.
        owner: the object whose function is called.
        function: that function's name.
        module: the module that owns the weights.
        arguments: as of the patch point.
        traced: as of the patch point.
        weights: as of the patch point.
    """

    role: str
    switch: str
    owner: torch.nn.Module
    function: str
    module: torch.nn.Module
    arguments: Callable[[tuple[Any, ...], dict[str, Any]], Arguments] = as_they_are
    traced: Callable[[Callable[..., Any]], Callable[..., Any]] = itself
    weights: str = ""

    @classmethod
    def at(cls, point: PatchPoint, owner: torch.nn.Module, role: str) -> HostNetwork:
        """The network in a role that is called at a patch point of this object."""
        module = owner.get_submodule(point.weights)
        return cls(role, point.switch, owner, point.function, module, point.arguments, point.traced, point.weights)

    @property
    def instance_function(self) -> Any:
        """The function that shadows the class's on this one instance, or None."""
        return vars(self.owner).get(self.function)

    @property
    def class_function(self) -> Any:
        """The class's own function, without a patch of ours."""
        return unwrap(getattr(type(self.owner), self.function))

    @property
    def is_leftover(self) -> bool:
        """Whether the function on the instance is the class's own: some extensions leave it there when they are done."""
        function = self.instance_function
        if not isinstance(function, MethodType) or function.__self__ is not self.owner:
            return False
        return unwrap(function.__func__) is self.class_function

    def bound(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """What the network computes, by a function of the class; of its owner only what leads to the weights is there."""
        return self.traced(function.__get__(way_to(self.weights, self.owner) if self.weights else self.owner))
