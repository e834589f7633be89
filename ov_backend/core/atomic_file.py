"""Files that appear whole or not at all, whatever ends the process that writes them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO

_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)


@contextlib.contextmanager
def atomic_write(path: Path) -> Iterator[IO[bytes]]:
    """A file to write, which gets its name at the end of the block and is removed if the block fails.

    Until then it is called ``.NAME.part`` and lies in the same folder, and an older file of this name stays as it is. A link of
    this name is replaced; its target is not. Two processes must not write the same file at once, and nothing is flushed to the
    disk: a block that needs this does it itself.

    Raises:
        OSError: it cannot be written.
    """
    temporary = path.with_name(f".{path.name}.part")
    try:
        with os.fdopen(os.open(temporary, _FLAGS, 0o644), "wb") as file:
            yield file
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
