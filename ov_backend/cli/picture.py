"""The picture that ``generate`` and ``demo`` are asked for: its options, read and checked before PyTorch is imported."""

from __future__ import annotations

import argparse
import random
from dataclasses import dataclass
from pathlib import Path

from ov_backend.cli import arguments
from ov_backend.core.errors import SettingsError, short_repr
from ov_backend.hosts.standalone import samplers
from ov_backend.hosts.standalone.checkpoint_files import checked
from ov_backend.hosts.standalone.limits import check
from ov_backend.hosts.standalone.lora_tags import (
    check_lora,
    first_file,
    is_name,
    lora_files,
    lora_folders,
    lora_strength,
    lora_tag,
    loras_of,
    missing_lora,
    named_twice,
)
from ov_backend.hosts.standalone.suggestions import suggestions_for
from ov_backend.ui.infotext import Parameters

Loras = tuple[tuple[Path, float], ...]


@dataclass(frozen=True)
class Picture:
    """What is asked for: parameters with a seed and a tag for each LoRA, and the LoRAs' files and strengths other than 0."""

    checkpoint: Path
    parameters: Parameters
    loras: Loras


def add(parser: argparse.ArgumentParser, seed: int, prompt: str | None = None) -> None:
    """Add what :func:`read` reads; ``seed`` and ``prompt`` are defaults."""
    arguments.add_prompt(parser, prompt)
    parser.add_argument("--negative", default="", help="what should not be in the picture")
    what = f"{arguments.CHECKPOINT_HELP}; default: the project's own"
    parser.add_argument("--checkpoint", type=arguments.file, metavar="FILE", help=what)
    what = "add a LoRA, with a strength other than 1 as style.safetensors:0.8; may be given several times"
    parser.add_argument("--lora", action="append", default=[], metavar="FILE[:STRENGTH]", help=what)
    arguments.add_lora_dir(parser)
    arguments.add_picture(parser, seed)
    arguments.add_cache_dir(parser)


def read(options: argparse.Namespace, prompt: str | None = None, count: int = 1) -> Picture:
    """Read and check what is asked for; ``prompt`` is the default, ``count`` the number of pictures with seeds one apart.

    Raises:
        SettingsError: a value cannot be used.
        CheckpointError: the checkpoint, or a LoRA, cannot be read.
    """
    checkpoint, configuration = checked(options.checkpoint)
    full, loras = _with_loras(arguments.one_prompt(options, prompt), checkpoint, options)
    own = suggestions_for(checkpoint.stem)
    width, height = options.size or (configuration.trained_side, configuration.trained_side)
    parameters = Parameters(
        prompt=full,
        negative_prompt=options.negative,
        steps=options.steps or own.steps,
        guidance=options.guidance if options.guidance is not None else own.guidance,
        seed=options.seed,
        width=width,
        height=height,
        sampler=samplers.sampler_named(options.sampler) or options.sampler or " ",
    ).with_seed(random.randrange(1 << 32))
    check(parameters, configuration.timesteps)
    if parameters.seed + count > 1 << 63:
        raise SettingsError(f"--seed is {parameters.seed}, too large for {count} pictures; make it smaller.")
    return Picture(checkpoint, parameters, loras)


def _with_loras(prompt: str, checkpoint: Path, options: argparse.Namespace) -> tuple[str, Loras]:
    """The prompt with a tag for each LoRA, and all LoRAs with their strengths."""
    folders = lora_folders(checkpoint, options.lora_dir)
    given = [_read_lora(text, folders) for text in options.lora]
    full = " ".join([prompt, *(lora_tag(path.stem, strength) for path, strength in given)])
    loras_of(full)  # refuses one that is named twice
    named = lora_files(prompt, folders, checkpoint)
    for path, _ in given:
        if any(path.samefile(other) for other, _ in named):
            raise named_twice(path, str(path))
        check_lora(path, checkpoint)
    return full, (*named, *(each for each in given if each[1]))


def _read_lora(text: str, folders: tuple[Path, ...]) -> tuple[Path, float]:
    """Read FILE[:STRENGTH]; the file may also be a name in the folder of LoRAs."""
    name, colon, strength = text.rpartition(":")
    places = (Path(), *folders)
    path = first_file(text, places) if text.strip() else None
    if path is None and colon and name.strip():
        path, value = first_file(name, places), lora_strength(name, strength)
    else:
        name, value = text, 1.0
    if path is None:
        raise missing_lora(name, places)
    if not is_name(path.stem):
        raise SettingsError(f"--lora is {short_repr(text)}; the name of its file must have none of the characters : < > and ,")
    return path, value
