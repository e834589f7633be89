"""``python -m ov_backend report``: how much of a checkpoint's networks, or of any module, runs in OpenVINO."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ov_backend.checkpoint.header import read_header
from ov_backend.cli.arguments import add_command, check_file, file, size
from ov_backend.core import interrupts
from ov_backend.core.errors import SettingsError, first_line, short_repr
from ov_backend.core.settings import Settings
from ov_backend.ui.snapshot import network_label

if TYPE_CHECKING:
    from ov_backend.torch_compile.report.coverage import Report


def add(commands: Any) -> None:
    """Add the subcommand to the command line."""
    text = "Report how much of a checkpoint's networks, or of a module, runs in OpenVINO."
    parser = add_command(commands, "report", run, text)
    what = "a checkpoint file, or module:callable that returns (model, inputs), inputs being a tuple or a dict of keywords"
    parser.add_argument("target", metavar="CHECKPOINT|module:callable", help=what)
    what = "pixels of a checkpoint's picture, default 512x512"
    parser.add_argument("--size", type=size, default=(512, 512), metavar="WxH or N", help=what)
    parser.add_argument("--svg", type=file, metavar="FILE", help="also draw the partitions into this file")


def run(options: argparse.Namespace) -> int:
    """Print the report; the exit code is 0."""
    if options.svg is not None:
        check_file(options.svg, "--svg")
    with interrupts.work():
        report = of_target(options.target, options.size)
        if options.svg is not None:
            options.svg.write_text(report.svg(), encoding="utf-8")
    sys.stdout.write((report.json() if options.json else report.text()) + "\n")
    return 0


def of_target(target: str, size: tuple[int, int] = (512, 512)) -> Report:
    """The report on a checkpoint file for a picture of this width and height, or on what ``module:callable`` returns.

    Raises:
        SettingsError: the target is neither.
        CheckpointError: the file is no checkpoint.
    """
    if _is_file(target):
        return of_checkpoint(Path(target), size)
    folder = str(Path.cwd())
    sys.path.insert(0, folder)  # as python -m does
    try:
        return _of_callable(target)
    finally:
        with contextlib.suppress(ValueError):  # the module may have changed the list
            sys.path.remove(folder)


def _of_callable(target: str) -> Report:
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
    import torch

    from ov_backend.torch_compile.explain import explain

    if not callable(model):
        raise SettingsError(f"{target!r} returned a {type(model).__name__} as its model; it must be a module or a function.")
    args, kwargs = ((), inputs) if isinstance(inputs, dict) else (inputs, {})
    try:
        with torch.no_grad():
            model(*args, **kwargs)  # Dynamo would log a traceback, and keep the cause to itself
    except Exception as error:
        raise SettingsError(f"{target!r} cannot be called with its inputs ({_what(error)}); make them fit the model.") from error
    return explain(model, *args, **kwargs)


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
            inputs = _inputs(role, pipe, size)
            graph = of_module(role, module, settings=Settings(), **inputs)
            parts.append(dataclasses.replace(graph, title=network_label(role)))
    return Report(tuple(parts))


def _inputs(role: str, pipe: Any, size: tuple[int, int]) -> dict[str, Any]:
    """What a network is called with for a picture of this width and height."""
    import torch

    (width, height), config = size, pipe.unet.config
    if role == "vae_encode":
        return {"sample": torch.zeros(1, 3, height, width)}
    if role == "vae_decode":
        return {"sample": torch.zeros(1, pipe.vae.config.latent_channels, height // 8, width // 8)}
    if role.startswith("text_encoder"):
        return {"input_ids": torch.zeros(1, 77, dtype=torch.int64), "output_hidden_states": True, "return_dict": False}
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
