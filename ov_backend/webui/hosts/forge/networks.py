"""The functions by which Forge calls its networks, and what of a call's arguments a network's result depends on.

A denoiser is called with ``transformer_options``, a dict of the sampler's that its forward reads and writes, and ``control``, lists
of tensors that it takes apart. A trace gets an empty dict and lists of its own; what other extensions put into the dict, a
trace would not follow (:func:`foreign_options`).
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from ov_backend.webui.patch_points import Arguments, PatchPoint, on_a_copy

#: What the sampler itself puts into the options at each call; forwards do not read it, the functions of extensions do.
_OF_SAMPLER = frozenset({"cond_or_uncond", "sigmas", "cond_mark", "cond_indices", "uncond_indices"})
#: What forwards write there.
_WRITTEN = frozenset({"original_shape", "transformer_index", "block", "block_index"})
_OPTIONS = "transformer_options"
#: Arguments that no network takes as they are.
_NOT_PASSED = frozenset({_OPTIONS, "control_model"})


def foreign_options(options: Mapping[str, Any] | None) -> list[str]:
    """What other extensions have put into a denoiser's options: the names of all entries that are not the sampler's, and not empty."""
    return [str(name) for name, value in (options or {}).items() if name not in _OF_SAMPLER | _WRITTEN and value]


def takes_options(function: Callable[..., Any]) -> bool:
    """Whether a denoiser's forward reads the options at all."""
    return _OPTIONS in inspect.signature(function).parameters


def _without_options(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
    return args, {name: value for name, value in kwargs.items() if name not in _NOT_PASSED}


def _with_fresh_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """A denoiser's forward, with options and lists of control that nobody else has."""

    @functools.wraps(function)
    def forward(*args: Any, control: Any = None, **kwargs: Any) -> Any:
        lists = {name: list(tensors) for name, tensors in control.items()} if isinstance(control, dict) else control
        return function(*args, control=lists, transformer_options={}, **kwargs)

    return forward


def _denoiser(module: str, name: str) -> PatchPoint:
    return PatchPoint(module, name, "forward", "unet", arguments=_without_options, traced=_with_fresh_options)


#: Of a text encoder only the stack of layers: its token embeddings depend on data of the prompt (textual inversion).
PATCH_POINTS: tuple[PatchPoint, ...] = (
    _denoiser("backend.nn.unet", "IntegratedUNet2DConditionModel"),
    _denoiser("backend.nn.flux", "IntegratedFluxTransformer2DModel"),
    _denoiser("backend.nn.chroma", "IntegratedChromaTransformer2DModel"),
    _denoiser("backend.nn.mmditx", "MMDiTX"),
    PatchPoint("backend.nn.vae", "Encoder", "forward", "vae"),
    PatchPoint("backend.nn.vae", "Decoder", "forward", "vae"),
    # since transformers 5 the caller collects hidden states, and would get none from a compiled stack
    PatchPoint("transformers.models.clip.modeling_clip", "CLIPEncoder", "forward", "text_encoder", needs="output_hidden_states"),
    PatchPoint("backend.nn.t5", "T5Stack", "forward", "text_encoder", traced=on_a_copy),
)
