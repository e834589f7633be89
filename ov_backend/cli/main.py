"""``python -m ov_backend COMMAND``, or ``ov-backend COMMAND`` where it is installed: arguments in, text or JSON out.

Exit codes: 0 done, 1 something needs attention (``batch``, ``cache verify``, ``precompile``), 2 bad input (one sentence on
stderr; without a command the help), 130 interrupted.
"""

from __future__ import annotations

import argparse
import difflib
import importlib.metadata
import logging
import os
import platform
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import ov_backend
from ov_backend.cli import batch, cache, demo, devices, generate, precompile, report, serve
from ov_backend.cli.output import OutputLost, checked_output
from ov_backend.core import interrupts
from ov_backend.core.errors import OVBackendError, first_line, short_repr
from ov_backend.core.package_files import IS_INSTALLED

log = logging.getLogger(__name__)

#: Characters of a message; what was given may be of any length.
_LONGEST = 800

_COMMANDS = (generate, demo, serve, batch, devices, cache, precompile, report)


class _Parser(argparse.ArgumentParser):
    """A parser that reports an error in one sentence, and what it does not know itself: a command with its own name and help."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As argparse's, but nothing is left over. Raises SystemExit if there is an argument that this command does not have."""
        options, unknown = super().parse_known_args(args, namespace)
        if unknown:
            wrong = [word for word in unknown if word.startswith("-")] or unknown  # what follows one may be its value
            what, them = ("is not an option", "it") if len(wrong) == 1 else ("are not options", "them")
            advice = self._meant(wrong[0]) or f"remove {them}"
            self.error(f"{short_repr(' '.join(wrong))} {what} of this command; {advice}")
        return options, unknown

    def _meant(self, word: str) -> str:
        """What an unknown word may stand for, as advice; "" where that is not known."""
        if word.startswith("--"):
            names = [name.lstrip("-") for name in self._option_string_actions]
            close = _closest(word.partition("=")[0].lstrip("-"), names)
            return f"did you mean --{close}?" if close else ""
        has_prompt = any(action.metavar == "PROMPT" for action in self._actions)
        return "put a prompt of several words into quotes" if has_prompt and not word.startswith("-") else ""

    def error(self, message: str) -> NoReturn:
        advice = self._advice(_one_line(message))
        end = "" if advice.endswith("?") else "."
        self.exit(2, f"{self.prog}: {advice}{end} See {self.prog} --help.\n")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """As argparse's, but of an unknown command or word the one that is close."""
        if action.choices is None or value in action.choices:
            return
        choices = [*map(str, action.choices)]
        close = _closest(str(value), choices)
        hint = f"did you mean {close}?" if close else f"give one of {', '.join(choices)}"
        raise argparse.ArgumentError(action, f"there is no {short_repr(value)}; {hint}")

    def _advice(self, message: str) -> str:
        """What argparse says, but of a missing argument what to give, where one of several names is meant."""
        _, is_missing, names = message.partition("the following arguments are required: ")
        for action in self._actions:
            if is_missing and action.dest == names and action.choices:
                *others, last = map(str, action.choices)
                return f"say which: {', '.join(others)} or {last}"
        return f"{names.replace(', ', ' and ')} must be given" if is_missing else message


def _closest(word: str, known: Sequence[str]) -> str:
    """The word that is meant by one with a slip, or by the beginning of one; "" where that is not known."""
    begun = [each for each in known if len(word) > 1 and each.startswith(word.lower())]
    return begun[0] if len(begun) == 1 else next(iter(difflib.get_close_matches(word.lower(), known, 1, 0.6)), "")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    try:
        with checked_output():
            code = _run(arguments)
    except OutputLost:
        return 1
    except KeyboardInterrupt:
        code = interrupts.CODE
    if code != interrupts.CODE and not interrupts.interrupted():
        return code
    print("Interrupted.", file=sys.stderr)
    return interrupts.CODE


def _run(arguments: Sequence[str] | None) -> int:
    given = list(sys.argv[1:] if arguments is None else arguments)
    if any("\0" in argument for argument in given):
        return _refuse("An argument holds a null character, which no name and no path has; remove it.")
    parser = _parser()
    options = parser.parse_args(given)
    if not hasattr(options, "run"):
        parser.print_help(sys.stderr)
        return 2
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("DIFFUSERS_VERBOSITY", "error")
    try:
        return int(options.run(options))
    except OVBackendError as error:
        return _refuse(str(error))
    except OutputLost:
        raise
    except MemoryError:
        return _refuse("There is not enough memory for this; choose a smaller size or batch, or end other programs.")
    except OSError as error:
        name = f"{error.filename}: " if error.filename is not None else ""
        return _refuse(f"A file cannot be used ({name}{error.strerror or error}); check its path, its permissions and the disk.")
    except Exception as error:  # the last handler: a command ends in one sentence, whatever has failed
        log.debug("The command failed.", exc_info=True)
        if isinstance(error, ImportError) and not (error.name or "").startswith("ov_backend"):
            how = "pip install 'ov-backend[demo]'" if IS_INSTALLED else "pip install -e '.[demo]' in the project's folder"
            return _refuse(f"This command needs more packages ({error}); run {how}.")
        return _refuse(f"The command failed ({type(error).__name__}: {first_line(error)[:300]}); {_place(error)}.")


def _refuse(message: str) -> int:
    print(_one_line(message), file=sys.stderr)
    return 2


def _one_line(message: str) -> str:
    text = " ".join(message.split())
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST // 2]} ... {text[-_LONGEST // 3 :]}"


def _place(error: Exception) -> str:
    """Where an exception was raised, for a report of it."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f" with {frames[-1].filename}:{frames[-1].lineno}" if frames else ""
    return f"this is a defect, please report it{where}, or try other values"


class _Version(argparse.Action):
    """Prints the versions that a report of a defect needs."""

    def __init__(self, option_strings: Sequence[str], **options: Any) -> None:
        super().__init__(option_strings, default=argparse.SUPPRESS, **options)

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> NoReturn:
        packages = {"OpenVINO": "openvino", "PyTorch": "torch"}
        versions = [f"{name} {_installed(package)}" for name, package in packages.items()]
        print(f"ov-backend {ov_backend.__version__} ({', '.join(versions)}, Python {platform.python_version()})")
        parser.exit()


def _installed(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "is missing"


def _parser() -> argparse.ArgumentParser:
    name = "ov-backend" if Path(sys.argv[0] if sys.argv else "").stem == "ov-backend" else "python -m ov_backend"
    parser = _Parser(
        prog=name, description="Stable Diffusion on OpenVINO.", epilog=f"{name} COMMAND --help says what a command takes."
    )
    parser.add_argument("--version", action=_Version, nargs=0, dest=argparse.SUPPRESS, help="print versions and exit")
    commands = parser.add_subparsers(metavar="COMMAND")
    for command in _COMMANDS:
        command.add(commands)
    return parser
