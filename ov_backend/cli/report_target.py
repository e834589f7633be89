"""What ``python -m ov_backend report`` reports on: a checkpoint file, or what ``module:callable`` returns."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ov_backend.checkpoint.header import read_header
from ov_backend.core.errors import SettingsError, first_line, short_repr
from ov_backend.core.settings import Settings
from ov_backend.ui.snapshot import network_label

if TYPE_CHECKING:
    from ov_backend.torch_compile.report.coverage import Report


def of_target(target: str, size: tuple[int, int] = (512, 512)) -> Report:
    """The report on a checkpoint file for a picture of this width and height, or on what ``module:callable`` returns.

    Raises:
        SettingsError: the target is neither.
        CheckpointError: the file is no checkpoint.
    """
    if _is_file(target):
        return of_checkpoint(Path(target), size)
    name, colon, attribute = target.partition(":")
    if not colon:
        raise SettingsError(f"{target!r} is no file; give a checkpoint, or module:callable that returns (model, inputs).")
    if not all(part.isidentifier() for part in (*name.split("."), attribute)):
        raise SettingsError(f"{target!r} names no Python object; give module:callable, such as my_package.models:unet.")
    try:
        function: Callable[[], Any] = getattr(importlib.import_module(name), attribute)
    except Exception as error:  # the module is the user's, and may raise anything
        raise SettingsError(f"{target!r} cannot be imported ({_what(error)}); give module:callable.") from error
    if not callable(function):
        raise SettingsError(f"{target!r} is {short_repr(function)}, which cannot be called; give module:callable.")
    try:
        returned = function()
    except Exception as error:
        raise SettingsError(f"{target!r} raised {_what(error)}; it must return (model, inputs).") from error
    if not isinstance(returned, tuple) or len(returned) != 2 or not isinstance(returned[1], (tuple, list, dict)):
        raise SettingsError(f"{target!r} returned {type(returned).__name__}; module:callable must return (model, inputs).")
    model, inputs = returned
    from ov_backend.torch_compile.explain import explain

    if not callable(model):
        raise SettingsError(f"{target!r} returned a {type(model).__name__} as its model; it must be a module or a function.")
    try:
        return explain(model, **inputs) if isinstance(inputs, dict) else explain(model, *inputs)
    except Exception as error:
        raise SettingsError(f"{target!r} cannot be called with its inputs ({_what(error)}); make them fit the model.") from error


def _is_file(target: str) -> bool:
    try:
        return Path(target).is_file()
    except (OSError, ValueError):  # no file can have such a name
        return False


def _what(error: Exception) -> str:
    return f"{type(error).__name__}: {first_line(error)[:200]}"


def of_checkpoint(path: Path, size: tuple[int, int]) -> Report:
    """The report on every network of a checkpoint, for a picture of this width and height in pixels, with guidance."""
    read_header(path)  # before PyTorch is imported, which takes seconds
    import torch

    from ov_backend.checkpoint import load_pipeline
    from ov_backend.pipelines.accelerate import networks_of
    from ov_backend.torch_compile.report.coverage import Report, of_module

    pipe = load_pipeline(path)
    parts = []
    with torch.no_grad():
        for role, module in networks_of(pipe).items():
            inputs = _INPUTS[role.rstrip("_23")](pipe, module, size)
            graph = of_module(role, module, settings=Settings(), **inputs)
            parts.append(dataclasses.replace(graph, title=network_label(role)))
    return Report(tuple(parts))


def _unet(pipe: Any, module: Any, size: tuple[int, int]) -> dict[str, Any]:
    import torch

    config, (width, height) = module.config, size
    inputs = {
        "sample": torch.zeros(2, config.in_channels, height // 8, width // 8),
        "timestep": torch.tensor([1, 1]),
        "encoder_hidden_states": torch.zeros(2, 77, config.cross_attention_dim),
        "return_dict": False,
    }
    if config.addition_embed_type == "text_time":
        pooled = config.projection_class_embeddings_input_dim - 6 * config.addition_time_embed_dim
        inputs["added_cond_kwargs"] = {"text_embeds": torch.zeros(2, pooled), "time_ids": torch.zeros(2, 6)}
    return inputs


def _encode(pipe: Any, module: Any, size: tuple[int, int]) -> dict[str, Any]:
    import torch

    return {"sample": torch.zeros(1, 3, size[1], size[0])}


def _decode(pipe: Any, module: Any, size: tuple[int, int]) -> dict[str, Any]:
    import torch

    return {"sample": torch.zeros(1, pipe.vae.config.latent_channels, size[1] // 8, size[0] // 8)}


def _text(pipe: Any, module: Any, size: tuple[int, int]) -> dict[str, Any]:
    import torch

    return {"input_ids": torch.zeros(1, 77, dtype=torch.int64), "output_hidden_states": True, "return_dict": False}


_INPUTS: dict[str, Callable[[Any, Any, tuple[int, int]], dict[str, Any]]] = {
    "unet": _unet,
    "vae_encode": _encode,
    "vae_decode": _decode,
    "text_encoder": _text,
}
