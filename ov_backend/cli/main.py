"""``python -m ov_backend COMMAND``: arguments in, text or JSON out.

Exit codes: 0 done, 1 something needs attention (``cache verify``, ``precompile``), 2 bad input (one sentence on stderr), 130
interrupted.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from ov_backend.cli import cache, demo, devices, precompile, report, serve
from ov_backend.errors import OVBackendError

_COMMANDS = (demo, devices, cache, precompile, serve, report)


class _Parser(argparse.ArgumentParser):
    """A parser that reports an error in one sentence."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}. See {self.prog} --help.\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    options = _parser().parse_args(arguments)
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("DIFFUSERS_VERBOSITY", "error")
    try:
        return int(options.run(options))
    except OVBackendError as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("Interrupted.", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="python -m ov_backend", description="Stable Diffusion on OpenVINO.")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for command in _COMMANDS:
        command.add(commands)
    return parser
