"""What the commands print: every character in any encoding, a quiet end where nobody reads it, a sentence where it is full."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Iterator
from typing import Any

#: Beside a broken pipe, what says that nobody reads the output: on Windows the first is one.
_CLOSED = (errno.EINVAL, errno.EBADF)


class OutputLost(Exception):
    """Standard output is closed, or full."""


class _Output:
    """Standard output; what cannot be written raises :class:`OutputLost`."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write text; characters that the encoding lacks are escaped."""
        try:
            try:
                return int(self._stream.write(text))
            except UnicodeEncodeError:
                encoding = self._stream.encoding or "ascii"
                return int(self._stream.write(text.encode(encoding, "backslashreplace").decode(encoding)))
        except (OSError, ValueError) as error:  # a ValueError where it is closed
            raise OutputLost from error

    def flush(self) -> None:
        """Write what is buffered."""
        try:
            self._stream.flush()
        except (OSError, ValueError) as error:
            raise OutputLost from error

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextlib.contextmanager
def checked_output() -> Iterator[None]:
    """In this block, standard output and standard error exist, and a lost output is noticed.

    Raises:
        OutputLost: standard output is closed or full; where it is full, a sentence on standard error has said so.
    """
    with contextlib.ExitStack() as stack:
        if sys.stderr is None:
            stack.enter_context(contextlib.redirect_stderr(stack.enter_context(_nothing())))
        stream = sys.stdout if sys.stdout is not None else stack.enter_context(_nothing())
        output = _Output(stream)
        try:
            with contextlib.redirect_stdout(output):
                try:
                    yield
                finally:
                    output.flush()
        except OutputLost as lost:
            _discard(stream)
            _tell(lost.__cause__)
            raise


def _nothing() -> Any:
    return open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123  # the caller closes it


def _tell(error: BaseException | None) -> None:
    """Say why the output is lost, unless nobody reads it."""
    if not isinstance(error, OSError) or isinstance(error, ConnectionError) or error.errno in _CLOSED:
        return
    try:
        print(f"The output cannot be written ({error.strerror}); free space there, or send it elsewhere.", file=sys.stderr)
    except (OSError, ValueError):  # it goes to the same place
        _discard(sys.stderr)


def _discard(stream: Any) -> None:
    """Let what is buffered go nowhere, else Python complains about it at its end."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        handle = os.open(os.devnull, os.O_WRONLY)
        try:
            os.dup2(handle, stream.fileno())
        finally:
            os.close(handle)
