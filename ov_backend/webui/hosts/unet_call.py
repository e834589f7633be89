"""The call of a UNet, or of a transformer in its place, that is given two dicts, ``control`` and ``transformer_options``, as in
reForge and in Forge.

Its forward takes tensors out of the lists in ``control`` and writes to ``transformer_options``. That one holds what a step is
about, which a UNet does not compute with, and functions of extensions, which it calls between its layers and inside them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from ov_backend.webui.patch_points import Arguments

#: Behind the latents and the timesteps, whose names differ.
_NAMES = ("context", "y", "control", "transformer_options")
#: What says which functions to call, and what has made ``control``.
_NOT_COMPUTED_WITH = frozenset({"transformer_options", "control_model"})

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
    options = named(args, kwargs).get("transformer_options") or {}
    names = {name for name, value in options.items() if name not in _WITHOUT_EFFECT and not _is_empty(value)}
    for kinds in ("patches", "patches_replace"):
        if kinds in names:
            names = names - {kinds} | {name for name, value in options[kinds].items() if not _is_empty(value)}
    return names


def _is_empty(value: Any) -> bool:
    return value is None or value is False or (isinstance(value, (dict, list, tuple)) and not value)
