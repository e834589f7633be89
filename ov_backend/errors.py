"""Every exception that this package raises. A message says what was given, what is expected and what to do."""

from __future__ import annotations

from collections.abc import Sequence


class OVBackendError(Exception):
    """Base of all exceptions raised by ov_backend."""


class SettingsError(OVBackendError, ValueError):
    """A setting has an unknown name or a value that cannot be used."""


class DeviceError(OVBackendError, ValueError):
    """A device does not exist here, or cannot do what it was asked for."""


class CaptureError(OVBackendError):
    """A module cannot be traced into one graph; the message says why."""


class ConversionError(OVBackendError):
    """OpenVINO has no conversion for a graph; the message names the operators."""


class NothingIn8Bits(ConversionError):
    """No layer of a graph is computed in 8 bits with a recipe; the recipe's layers are those of other sizes."""


class NothingToCompute(ConversionError):
    """A graph computes nothing, it only returns its inputs. PyTorch answers the call, and this counts as no fallback."""


class InputMismatch(OVBackendError, ValueError):
    """A compiled graph was called with another name, shape or dtype than it was compiled for."""


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


def short_repr(value: object, length: int = 200) -> str:
    """A value that a user gave, for a message: its repr, in one line of at most ``length`` characters."""
    try:
        text = " ".join(repr(value).split("\n"))
    except Exception:  # the object's own, or a whole number of thousands of digits
        text = f"a {type(value).__name__} that cannot be written"
    return text if len(text) <= length else f"{text[: length - 3]}..."


def first_line(error: object) -> str:
    """The first line of an error's message."""
    return _lines(error)[0]


def last_line(error: object) -> str:
    """The last line of an error's message; OpenVINO puts the reason there."""
    return _lines(error)[-1]


def _lines(error: object) -> list[str]:
    text = str(error).encode("utf-8", "backslashreplace").decode()  # a log cannot write half of a surrogate pair
    return [line.strip() for line in text.splitlines() if line.strip()] or ["no message"]
