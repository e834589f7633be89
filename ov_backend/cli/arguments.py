"""What the commands share: how one is added, common options, sizes, and JSON."""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ov_backend.errors import OVBackendError, SettingsError, first_line
from ov_backend.pipelines.sizes import MAX_GUIDANCE, parse_size
from ov_backend.settings import LOW_MEMORY, PRECISIONS, Settings

#: Help of an argument that names a checkpoint.
CHECKPOINT_HELP = "a Stable Diffusion 1, 2 or XL .safetensors file"


def add_command(
    commands: Any, name: str, run: Callable[[argparse.Namespace], int], text: str, *, with_json: bool = True
) -> argparse.ArgumentParser:
    """Add a subcommand; ``run`` takes the options and returns the exit code."""
    parser: argparse.ArgumentParser = commands.add_parser(name, help=text, description=text)
    if with_json:
        parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    parser.set_defaults(run=run)
    return parser


def add_device_options(parser: argparse.ArgumentParser) -> None:
    """Add ``--device``, ``--precision`` and ``--low-memory``."""
    parser.add_argument("--device", help="an OpenVINO device, default CPU; see the command devices")
    precisions = ", ".join(PRECISIONS)
    parser.add_argument("--precision", default="auto", help=f"one of {precisions}; auto (default) is the device's own choice")
    text = "whether the weights' memory is given back once they are compiled; auto (default): where memory is short"
    parser.add_argument("--low-memory", default="auto", metavar="WHEN", help=f"one of {', '.join(LOW_MEMORY)}: {text}")


def add_cache_dir(parser: argparse.ArgumentParser) -> None:
    """Add ``--cache-dir``."""
    parser.add_argument("--cache-dir", metavar="FOLDER", help="folder of the captured graphs, default: the user's cache folder")


def settings_of(options: argparse.Namespace, **more: Any) -> Settings:
    """The settings for ``--device``, ``--precision``, ``--low-memory`` and ``--cache-dir``.

    Raises:
        SettingsError: a value cannot be used.
    """
    device = {"device": options.device} if options.device is not None else {}
    common = {"precision": options.precision, "low_memory": options.low_memory, "cache_dir": options.cache_dir}
    return Settings(**common, **device, **more)


def guidance(text: str) -> float:
    """Read a guidance scale.

    Raises:
        ArgumentTypeError: it is no number that a sampler can use.
    """
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not abs(value) <= MAX_GUIDANCE:
        expected = f"a number from {-MAX_GUIDANCE:g} to {MAX_GUIDANCE:g}, as 7"
        raise argparse.ArgumentTypeError(f"{text!r} is no guidance; give {expected}")
    return value


def folder(text: str) -> Path:
    """Read the path of a folder.

    Raises:
        ArgumentTypeError: it is empty; the current folder is meant by a dot only.
    """
    if not text.strip():
        raise argparse.ArgumentTypeError(f"{text!r} is no folder; give its path, . for the current one")
    return Path(text)


def check_folder(folder: Path, option: str) -> Path:
    """Check that files can be written into a folder, which may not exist yet; nothing is left there.

    Raises:
        SettingsError: they cannot.
    """
    try:
        # a link to nothing is no folder, and none can be made in its place
        existing = next((each for each in (folder, *folder.absolute().parents) if each.exists() or each.is_symlink()), folder)
        with tempfile.TemporaryFile(dir=existing):
            return folder
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or first_line(error)
        message = f"{option} is {str(folder)!r}, which cannot be written to ({reason}); give another folder."
        raise SettingsError(message) from error


@contextlib.contextmanager
def demo_packages(subject: str) -> Iterator[None]:
    """In this block, a missing package is reported together with what installs it.

    Raises:
        OVBackendError: an import failed.
    """
    try:
        yield
    except ImportError as error:
        raise OVBackendError(f"{subject} needs more packages ({error}): pip install 'ov-backend[demo]'") from error


def size_text(size: int) -> str:
    """A number of bytes in MiB or GiB, as in the settings: "0.26 MiB", "1.9 GiB"."""
    if size >= 1 << 30:
        return f"{size / (1 << 30):.1f} GiB"
    return f"{size / (1 << 20):.{2 if size < 10 << 20 else 0}f} MiB"


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
