"""Every exception that this package raises, and which others are its failures.

A message says what was given, what is expected and what to do.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import pathlib
import re
import signal
import traceback
from collections.abc import Callable, Sequence
from types import CodeType, FrameType
from typing import Any, TypeVar

T = TypeVar("T")
#: Whose code may fail on the way to an answer, by the first part of a module's name; generated code has no name.
_OWN = frozenset({"ov_backend", "openvino", "torch", "numpy", "sympy", "builtins", ""})
#: What they call, in Python's library.
_CALLED = frozenset({"collections", "concurrent", "contextlib", "functools", "hashlib", "inspect", "json", "threading"})
_OF_CALLBACK = "_ov_backend_of_callback"


class OVBackendError(Exception):
    """Base of all exceptions raised by ov_backend."""


class SettingsError(OVBackendError, ValueError):
    """A setting has an unknown name or a value that cannot be used."""


class DeviceError(OVBackendError, ValueError):
    """A device does not exist here, or cannot do what it was asked for."""


class MissingPackage(OVBackendError, ImportError):
    """A package is not installed; the message says how to install it."""


class CaptureError(OVBackendError):
    """A module cannot be traced into one graph; the message says why."""


class ConversionError(OVBackendError):
    """OpenVINO has no conversion for a graph; the message names the operators."""


class NothingIn8Bits(ConversionError):
    """No layer of a graph is computed in 8 bits with a recipe; the recipe's layers are those of other sizes."""


class NotFiniteWeight(ConversionError):
    """A weight is NaN or infinite, which a computation in 8 bits would hide."""


class NothingToCompute(ConversionError):
    """A graph computes nothing, it only returns its inputs. PyTorch answers the call, and this counts as no fallback."""


class InputMismatch(OVBackendError, ValueError):
    """A compiled graph was called with another name, shape or dtype than it was compiled for."""


class PositionOutOfRange(OVBackendError, IndexError):
    """A position lies outside of the tensor that it indexes; PyTorch, which answers the call, raises its own error."""


class Interrupted(OVBackendError):
    """A call was interrupted while it waited for a network to be prepared. It has no result, and there is no fallback."""


class PatchError(OVBackendError):
    """An attribute is patched already."""


class CheckpointError(OVBackendError, ValueError):
    """A file is not a Stable Diffusion checkpoint that can be read safely."""


class JobError(OVBackendError, ValueError):
    """A job for ``batch`` cannot be run. ``problems`` has one sentence for each bad row, with its number."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__(" ".join(problems))
        self.problems = tuple(problems)


def called_back(function: Callable[..., T], *args: Any) -> T:
    """What a function of the program returns; what it raises is no failure of this package."""
    try:
        return function(*args)
    except Exception as error:
        setattr(error, _OF_CALLBACK, True)
        raise


def is_of_callback(error: BaseException) -> bool:
    """Whether a function of the program has raised an exception, see :func:`called_back`."""
    return hasattr(error, _OF_CALLBACK)


def is_failure(error: Exception) -> bool:
    """Whether an exception is a failure of this package, of OpenVINO or of PyTorch, which another way to the answer may avoid.

    All others are the program's: of the handler of a signal, a callback, a property, an operator of its own, or raised in this
    thread by another one. They have frames of the program, or a class of its own.
    """
    if isinstance(error, OVBackendError):
        return True
    if is_of_callback(error) or isinstance(error, TimeoutError) or _root(type(error).__module__) not in _OWN | _CALLED:
        return False
    names = (frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_tb(error.__traceback__))
    return all(_root(name) in _OWN | _CALLED for name in names) and not is_of_signal(error)


def as_failure(error: Exception) -> OVBackendError:
    """A failure of this package as one of its own exceptions; OpenVINO's are RuntimeErrors."""
    if isinstance(error, OVBackendError):
        return error
    kind = "" if isinstance(error, RuntimeError) else f"{type(error).__name__}: "
    failed = OVBackendError(f"OpenVINO failed: {kind}{last_line(error)}")
    failed.__cause__ = error
    return failed


def is_of_signal(error: BaseException) -> bool:
    """Whether the handler of a signal has raised an exception, or another that was being handled when this one was raised.

    The code of a frame says whether it is that of a handler, whatever this has done with its variables. A handler that handles no
    signal any more is a function that was called with a number and its caller's frame.
    """
    frames = _frames_below(error)
    handlers = {_code_of(signal.getsignal(number)) for number in signal.valid_signals()} if frames else set()
    return any(frame.f_code in handlers or _handles_signal(frame) for frame in frames)


def _frames_below(error: BaseException) -> list[FrameType]:
    """The frames below the one that has caught an exception, with those of an exception that one of them was handling."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)][1:]
    before = error.__context__
    if before is not None and before.__traceback__ is not None and before.__traceback__.tb_frame in frames:
        frames += _frames_below(before)
    return frames


def _code_of(handler: Any) -> CodeType | None:
    """The code of a handler: a function, a method, an object that can be called, or either with arguments."""
    while isinstance(handler, functools.partial):
        handler = handler.func
    function = type(handler).__call__ if callable(handler) and not hasattr(handler, "__code__") else handler
    return getattr(function, "__code__", None)


def _handles_signal(frame: FrameType) -> bool:
    code, values = frame.f_code, frame.f_locals
    given = [values.get(name) for name in code.co_varnames[: code.co_argcount]]
    given += values.get(code.co_varnames[len(given) + code.co_kwonlyargcount], ()) if code.co_flags & inspect.CO_VARARGS else ()
    return any(isinstance(a, int) and isinstance(b, FrameType) and b is frame.f_back for a, b in itertools.pairwise(given))


def pass_on_signals(error: BaseException) -> None:
    """Raise an exception again if the handler of a signal has raised it: code that catches what other code raises calls this."""
    if is_of_signal(error):
        raise error


def _root(module: str) -> str:
    return module.partition(".")[0]


def short_repr(value: object, length: int = 200) -> str:
    """A value that a user gave, for a message: its repr without addresses, in one line of at most ``length`` characters."""
    try:
        text = re.sub(r" at 0x[0-9a-fA-F]+(?=>)", "", " ".join(repr(value).split("\n")))
    except Exception as error:  # the object's own, or a whole number of thousands of digits
        pass_on_signals(error)
        text = f"a {type(value).__name__} that cannot be written"
    return text if len(text) <= length else f"{text[: length - 3]}..."


def first_line(error: object) -> str:
    """The first line of an error's message, :func:`cleaned` unless it is of this project."""
    line = _lines(error)[0]
    return line if isinstance(error, OVBackendError) else cleaned(line)


def last_line(error: object) -> str:
    """The last line of an error's message; OpenVINO puts the reason there."""
    return cleaned(_lines(error)[-1])


#: What a message of PyTorch, Python or OpenVINO may hold beside its sentence, and what stands for it in ours.
_NOISE: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"\s*\(?(?:Hint|Developer debug context|Explanation): .*"), ""),
    (re.compile(r"(?: object)? at 0x[0-9a-fA-F]+"), ""),
    (re.compile(r"\b0x[0-9a-fA-F]+?(?=for\b)"), "an address "),  # OpenVINO writes no space there
    (re.compile(r"\b0x[0-9a-fA-F]+"), "an address"),
    (re.compile(re.escape(str(pathlib.Path(__file__).parents[1])) + r"[\w/\\]*\.py(?::\d+)?"), "ov_backend"),
    (re.compile(r"\bov_backend(?:\.\w+)*\.(?=\w)"), ""),
)


def cleaned(text: str) -> str:
    """A line of a foreign message without addresses, hints, and the names of this package's files and classes.

    The same cause has the same text in every process then, and is counted as one.
    """
    for pattern, instead in _NOISE:
        text = pattern.sub(instead, text)
    return text.strip() or "no message"


def _lines(error: object) -> list[str]:
    text = str(error).encode("utf-8", "backslashreplace").decode()  # a log cannot write half of a surrogate pair
    return [line.strip() for line in text.splitlines() if line.strip()] or ["no message"]
