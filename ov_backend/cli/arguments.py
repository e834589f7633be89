"""What the commands have in common: how one is added, sizes, and JSON."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from typing import Any

from ov_backend.errors import SettingsError
from ov_backend.pipelines.sizes import parse_size


def add_command(commands: Any, name: str, run: Callable[[argparse.Namespace], int], text: str) -> argparse.ArgumentParser:
    """A subcommand with ``--json``; its function takes the options and returns the exit code."""
    parser: argparse.ArgumentParser = commands.add_parser(name, help=text, description=text)
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    parser.set_defaults(run=run)
    return parser


def print_json(value: Any) -> None:
    """Print a value as JSON."""
    print(json.dumps(value, indent=2))


def size(text: str) -> tuple[int, int]:
    """Read ``512x768`` or ``512``, width first.

    Raises:
        ArgumentTypeError: it is no size of a picture; the message says what would do.
    """
    try:
        return parse_size(text)
    except SettingsError as error:
        raise argparse.ArgumentTypeError(str(error).rstrip(".")) from None
