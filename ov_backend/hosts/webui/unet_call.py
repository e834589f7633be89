"""The call of a UNet, or of a transformer in its place, that is given two dicts, ``control`` and ``transformer_options``, as in
reForge and in Forge.

Its forward takes tensors out of the lists in ``control`` and writes to ``transformer_options``. That one holds what a step is
about, which a UNet does not compute with, and functions of extensions, which it calls between its layers and inside them.
"""

from __future__ import annotations

import dis
import inspect
import types
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache, partial
from typing import Any

import torch

from ov_backend.hosts.webui.patch_points import Arguments

#: Behind the latents and the timesteps, whose names differ.
_NAMES = ("context", "y", "control", "transformer_options")
#: What says which functions to call, and what has made ``control``.
_OPTIONS = "transformer_options"
#: Functions in there by the place at which they replace something, such as ("middle", 0, 0); and the place that is computed.
_BY_PLACE, _PLACE = "patches_replace", "block"
_NOT_COMPUTED_WITH = frozenset({_OPTIONS, "control_model"})

#: What a UNet writes to ``transformer_options`` itself, and what others write for the functions that they put there.
_WITHOUT_EFFECT = frozenset(
    {"block", "block_index", "transformer_index", "original_shape", "activations_shape"}
    | {"sigmas", "sample_sigmas", "cond_or_uncond", "cond_mark", "cond_indices", "uncond_indices", "uuids"}
    | {"wrappers", "callbacks"}  # these are called around the forward
)


def named(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a call behind the first two, by their names."""
    return {**dict(zip(_NAMES, args[2:])), **kwargs}


def arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
    """What of a call the network is called with: all but ``transformer_options``, and copies of the lists in ``control``."""
    given = {name: value for name, value in named(args, kwargs).items() if name not in _NOT_COMPUTED_WITH}
    control = given.pop("control", None) or {}
    lists = {name: list(tensors) for name, tensors in control.items() if tensors}
    return args[:2], {**given, **({"control": lists} if lists else {})}


def with_fresh_dicts(function: Callable[..., Any]) -> Callable[..., Any]:
    """The forward, called with what :func:`arguments` returns."""
    return partial(_with_fresh_dicts, function)


def _with_fresh_dicts(function: Callable[..., Any], x: Any, timesteps: Any, control: Any = None, **given: Any) -> Any:
    lists = None if control is None else {name: list(tensors) for name, tensors in control.items()}
    return function(x, timesteps, **given, control=lists, transformer_options={})


def functions_in(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> set[str]:
    """Names of what extensions have put into ``transformer_options``: of patches by their kind, of all else by its key."""
    options = named(args, kwargs).get(_OPTIONS) or {}
    names = {name for name, value in options.items() if name not in _WITHOUT_EFFECT and not _is_empty(value)}
    for kinds in ("patches", _BY_PLACE):
        if kinds in names:
            names = names - {kinds} | {name for name, value in options[kinds].items() if not _is_empty(value)}
    return names


def _replaced_elsewhere(options: Mapping[str, Any]) -> set[str]:
    """Names of the kinds of functions that stand only at other places than the one that is computed."""
    place = options.get(_PLACE)
    if not isinstance(place, tuple):
        return set()
    kinds = {kind: by_place for kind, by_place in (options.get(_BY_PLACE) or {}).items() if isinstance(by_place, dict)}
    others = {kind for kind in kinds if all(isinstance(key, tuple) and key[:2] != place[:2] for key in kinds[kind])}
    return others - {*options, *(options.get("patches") or ())}


def _is_empty(value: Any) -> bool:
    return value is None or value is False or (isinstance(value, (dict, list, tuple)) and not value)


def block_arguments(module: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Arguments:
    """A call of a module inside: by names and without ``transformer_options``, if it calls none of the functions in there."""
    names = _parameters(module.__class__)
    given = {**dict(zip(names, args)), **kwargs}
    if _OPTIONS not in names or len(args) > len(names) or not isinstance(given.get(_OPTIONS), dict):
        return args, dict(kwargs)
    parts = list(module.modules())
    functions = functions_in((), given)
    if all(_only_asks_where(part.__class__) for part in parts):
        functions -= _replaced_elsewhere(given[_OPTIONS])
    if any("forward" in vars(part) or not functions.isdisjoint(_texts(part.__class__)) for part in parts):
        return args, dict(kwargs)
    return (), {name: value for name, value in given.items() if name != _OPTIONS}


def block_traced(module: torch.nn.Module, forward: Callable[..., Any]) -> Callable[..., Any]:
    """The forward of a module inside, called with what :func:`block_arguments` returns."""
    return partial(_with_fresh_options, forward) if _OPTIONS in _parameters(module.__class__) else forward


def _with_fresh_options(function: Callable[..., Any], *args: Any, **given: Any) -> Any:
    if args or _OPTIONS in given:  # as the module is called
        return function(*args, **given)
    return function(**given, transformer_options={})


@lru_cache(maxsize=256)
def _parameters(cls: Any) -> tuple[str, ...]:
    """The names of a forward's parameters behind the module; none where it takes any number by position."""
    parameters = list(inspect.signature(cls.forward).parameters.values())[1:]
    by_position = any(each.kind is each.VAR_POSITIONAL for each in parameters)
    return () if by_position else tuple(each.name for each in parameters)


@lru_cache(maxsize=256)
def _texts(cls: Any) -> frozenset[str]:
    """All texts in the code of a class and in the functions that it names: what it reads of a dict is among them."""
    return frozenset(text for code in _codes_of(cls) for text in code.co_consts if isinstance(text, str))


@lru_cache(maxsize=256)
def _only_asks_where(cls: Any) -> bool:
    """Whether this code looks the place up, as ``options.get("block")``, and does nothing else with it, such as to set it."""
    for code in _codes_of(cls):
        instructions = list(dis.get_instructions(code))
        for before, now in zip([instructions[0], *instructions], instructions):
            if now.opcode in dis.hasconst and _mentions_place(now.argval) and before.argval != "get":
                return False
    return True


def _mentions_place(constant: Any) -> bool:
    return constant == _PLACE if isinstance(constant, str) else isinstance(constant, tuple) and _PLACE in constant


@lru_cache(maxsize=256)
def _codes_of(cls: Any) -> tuple[types.CodeType, ...]:
    """The code of a class and of the functions that it names."""
    bases = [base for base in cls.__mro__ if not base.__module__.startswith("torch.")]
    functions = [member for base in bases for member in vars(base).values() if isinstance(member, types.FunctionType)]
    found: dict[types.FunctionType, None] = {}
    while functions:
        function = functions.pop()
        if function not in found:
            found[function] = None
            named = (function.__globals__.get(name) for code in _codes(function.__code__) for name in code.co_names)
            functions += [each for each in named if isinstance(each, types.FunctionType)]
    return tuple(code for function in found for code in _codes(function.__code__))


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """A function's code, and that of the functions made in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)
