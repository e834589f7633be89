"""What the commands share: how one is added, common options, sizes, and JSON."""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ov_backend.core.errors import SettingsError, first_line, short_repr
from ov_backend.core.settings import ENV_CACHE_DIR, LOW_MEMORY, PRECISIONS, Settings, environment
from ov_backend.hosts.standalone import samplers
from ov_backend.pipelines.sizes import GUIDANCE, check_guidance, parse_size

#: Help of an argument that names a checkpoint.
CHECKPOINT_HELP = "a Stable Diffusion 1, 2 or XL .safetensors file"
#: The precisions that need no calibration, which int8 takes from a first picture.
UNCALIBRATED = tuple(each for each in PRECISIONS if each != "int8")
_DEFAULT_FOLDER = f"that of the environment variable {ENV_CACHE_DIR}, else the user's cache folder"


def add_command(
    commands: Any, name: str, run: Callable[[argparse.Namespace], int], text: str, *, with_json: bool = True
) -> argparse.ArgumentParser:
    """Add a subcommand; ``run`` takes the options and returns the exit code."""
    parser: argparse.ArgumentParser = commands.add_parser(name, help=text, description=text)
    if with_json:
        parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    parser.set_defaults(run=run)
    return parser


def add_checkpoint(parser: argparse.ArgumentParser, more: str = "") -> None:
    """Add a checkpoint, with or without ``--checkpoint`` before it; :func:`one_checkpoint` reads it; ``more`` ends its help."""
    parser.add_argument("file", type=file, nargs="?", metavar="FILE", help=f"{CHECKPOINT_HELP}; default: the project's own{more}")
    parser.add_argument("--checkpoint", type=file, metavar="FILE", help="the same")


def one_checkpoint(options: argparse.Namespace) -> Path | None:
    """The checkpoint that is given; None for none. Raises SettingsError if two are given."""
    if options.file is not None and options.checkpoint is not None:
        raise SettingsError(f"Both {str(options.file)!r} and --checkpoint are given; give one of them.")
    chosen: Path | None = options.file if options.file is not None else options.checkpoint
    return chosen


def add_prompt(parser: argparse.ArgumentParser, default: str | None = None) -> None:
    """Add a prompt, with or without ``--prompt`` before it; :func:`one_prompt` reads it."""
    what = "what to draw; (word:1.2) weights a word, and <lora:name:0.8> adds a LoRA"
    parser.add_argument("words", nargs="?", metavar="PROMPT", help=what + (f"; default: {default}" if default else ""))
    parser.add_argument("--prompt", help="the same")


def one_prompt(options: argparse.Namespace, default: str | None = None) -> str:
    """The prompt that is given, else the default. Raises SettingsError if two are given, or none where there is no default."""
    if options.words is not None and options.prompt is not None:
        raise SettingsError(f"Both {short_repr(options.words)} and --prompt are given; give one of them.")
    prompt = options.words if options.words is not None else options.prompt if options.prompt is not None else default
    if prompt is None:
        raise SettingsError('No prompt is given; give what to draw, as "a fox in the snow".')
    return str(prompt)


def add_lora_dir(parser: argparse.ArgumentParser) -> None:
    """Add ``--lora-dir``."""
    what = "folder of the LoRAs that prompts name, default: the folder lora beside the checkpoint"
    parser.add_argument("--lora-dir", type=folder, metavar="FOLDER", help=what)


def add_device_options(
    parser: argparse.ArgumentParser, precisions: Sequence[str] = PRECISIONS, low_memory: bool = True
) -> None:
    """Add ``--device``, ``--precision`` and, unless there is no ``low_memory``, that; the command works with ``precisions``."""
    parser.add_argument("--device", help="an OpenVINO device, default CPU; see the command devices")
    text = f"one of {', '.join(precisions)}; auto (default) is the device's own choice"
    parser.add_argument("--precision", type=_precision(precisions), default="auto", help=text)
    if not low_memory:
        return
    text = "whether PyTorch's weights are moved to the disk once they are compiled; auto (default): where memory is short"
    parser.add_argument("--low-memory", default="auto", metavar="WHEN", help=f"one of {', '.join(LOW_MEMORY)}: {text}")


def add_picture(parser: argparse.ArgumentParser, seed: int) -> None:
    """Add what decides a picture beside its prompt, and the options of the device; ``seed`` is the default of ``--seed``."""
    parser.add_argument("--steps", type=whole_number(1, 1000, 20), help="sampling steps, default: what suits, else 20")
    parser.add_argument("--size", type=size, metavar="WxH or N", help="pixels, default: the checkpoint's own size")
    what = f"seed of the noise, -1 for any; default {seed}"
    parser.add_argument("--seed", type=whole_number(-1, (1 << 63) - 1, 7), default=seed, help=what)
    parser.add_argument("--guidance", type=guidance, help="guidance scale, default: what suits the checkpoint, else 7")
    what = f"one of {', '.join(samplers.NAMES)}; default {samplers.DEFAULT}"
    parser.add_argument("--sampler", default=samplers.DEFAULT, help=what)
    add_device_options(parser, UNCALIBRATED)


def add_cache_dir(parser: argparse.ArgumentParser) -> None:
    """Add ``--cache-dir``."""
    what = f"folder of the stored graphs, default: {_DEFAULT_FOLDER}"
    parser.add_argument("--cache-dir", metavar="FOLDER", help=what)


def cache_dir(options: argparse.Namespace) -> str | None:
    """The folder of the graphs: that of ``--cache-dir``, else that of the environment, else None for the user's cache folder.

    Raises:
        SettingsError: it is no folder, and cannot become one.
    """
    given = options.cache_dir if options.cache_dir is not None else environment(ENV_CACHE_DIR) or None
    if given is not None:
        _check_can_be_folder(given, cache_dir_name(options))
    return given


def cache_dir_name(options: argparse.Namespace) -> str:
    """What the folder of the graphs is given by, for messages: the option, or the variable of the environment."""
    return ENV_CACHE_DIR if options.cache_dir is None and environment(ENV_CACHE_DIR) else "--cache-dir"


def _check_can_be_folder(text: str, name: str) -> None:
    """Check that a path is a folder, or that nothing is in the way of making one."""
    advice = "give the path of a folder"
    if not text.strip():
        raise SettingsError(f"{name} is {text!r}, which is no folder; {advice}.")
    try:
        existing = _existing_part(Path(text))
    except (OSError, ValueError) as error:
        raise SettingsError(f"{name} is {short_repr(text)}, which cannot be used ({_reason(error)}); {advice}.") from error
    if not existing.is_dir():
        what = "which is no folder" if existing == Path(text) else f"and {short_repr(str(existing))} is no folder"
        raise SettingsError(f"{name} is {short_repr(text)}, {what}; {advice}.")


def _existing_part(path: Path) -> Path:
    """A path, or the nearest of its parents that is there; a link to nothing counts, since no folder can be made in its place.

    Raises:
        OSError, ValueError: the path cannot be that of a file, or may not be looked at.
    """
    for each in (path, *path.absolute().parents):
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            each.lstat()
            return each
    return path


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or first_line(error)


def settings_of(options: argparse.Namespace, **more: Any) -> Settings:
    """The settings for ``--device``, ``--precision``, ``--low-memory`` and ``--cache-dir``.

    Raises:
        SettingsError: a value cannot be used.
    """
    device = {"device": options.device} if options.device is not None else {}
    common = {"precision": options.precision, "low_memory": options.low_memory, "cache_dir": cache_dir(options)}
    return Settings(**common, **device, **more)


def check_device(settings: Settings) -> None:
    """Check the device before PyTorch is imported, and before a checkpoint of gigabytes is read.

    Raises:
        DeviceError: it is not there, or cannot compute in that precision.
    """
    from ov_backend.core import devices

    devices.check(settings)


def check_uncalibrated(settings: Settings) -> None:
    """Refuse int8 where a command makes no picture to calibrate it by. Raises SettingsError."""
    if settings.precision == "int8":
        others = f"give one of {', '.join(UNCALIBRATED)}, or use int8 in the page of 'serve' or the WebUI"
        raise SettingsError(f"--precision int8 would compute the first picture in another precision; {others}.")


def whole_number(least: int, most: int, example: int) -> Callable[[str], int]:
    """What reads a whole number within bounds; its message says them, with an example."""

    def read(text: str) -> int:
        is_number = re.fullmatch(r"[+-]?[0-9]{1,30}", text.strip()) is not None
        if not is_number or not least <= int(text) <= most:
            expected = f"a whole number from {least} to {most}, such as {example}"
            raise argparse.ArgumentTypeError(f"it takes {expected}, not {short_repr(text)}")
        return int(text)

    return read


def _precision(offered: Sequence[str]) -> Callable[[str], str]:
    """What reads a precision; its message says which are offered. One that is not is up to the command."""

    def read(text: str) -> str:
        if text not in PRECISIONS:
            raise argparse.ArgumentTypeError(f"{short_repr(text)} is no precision; give one of {', '.join(offered)}")
        return text

    return read


def guidance(text: str) -> float:
    """Read a guidance scale. Raises ArgumentTypeError if it is no number that a sampler can use."""
    try:
        return check_guidance(float(text))
    except (ValueError, SettingsError):
        raise argparse.ArgumentTypeError(f"it takes {GUIDANCE}, not {short_repr(text)}") from None


def _path(what: str, advice: str = "") -> Callable[[str], Path]:
    """What reads a path that is not empty, which would be taken for the current folder."""

    def read(text: str) -> Path:
        if not text.strip():
            raise argparse.ArgumentTypeError(f"{text!r} is no {what}; give its path{advice}")
        return Path(text)

    return read


file, folder = _path("file"), _path("folder", ", . for the current one")


def check_folder(folder: Path, option: str) -> Path:
    """Check that files can be written into a folder, which may not exist yet; nothing is left there.

    Raises:
        SettingsError: they cannot.
    """
    try:
        with tempfile.TemporaryFile(dir=_existing_part(folder)):
            return folder
    except (OSError, ValueError) as error:
        message = f"{option} is {str(folder)!r}, which cannot be written to ({_reason(error)}); give another folder."
        raise SettingsError(message) from error


def check_file(path: Path, option: str) -> None:
    """Check that a file can be written, whose folder has to be there; nothing is left there.

    Raises:
        SettingsError: it cannot.
    """
    if path.is_dir():
        raise SettingsError(f"{option} is {str(path)!r}, which is a folder; give the name of a file.")
    if not path.parent.is_dir():
        raise SettingsError(f"{option} is {str(path)!r}, and there is no folder {str(path.parent)!r}; make it or give another.")
    check_folder(path.parent, f"{option}'s folder")


def print_json(value: Any) -> None:
    """Print a value as JSON."""
    print(json.dumps(value, indent=2))


def size(text: str) -> tuple[int, int]:
    """Read ``512x768`` or ``512``, width first.

    Raises:
        ArgumentTypeError: it is no size of a picture; the message says what is expected.
    """
    try:
        return parse_size(text)
    except SettingsError as error:
        raise argparse.ArgumentTypeError(str(error).rstrip(".")) from None
