"""Windows' rules for files under pathlib, os and open: what Windows refuses is refused here, so that it shows on any system.

A file that is open can be neither removed nor renamed, nor replaced. Names are case-insensitive, some are reserved, and a path
has at most 259 characters. There is no fork, no fcntl, no owner, and a folder cannot be opened.
"""

from __future__ import annotations

import builtins
import errno
import io
import os
import pathlib
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ov_backend.core import posix

RESERVED = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?", re.IGNORECASE)
FORBIDDEN = re.compile(r'[<>:"|?*\x00-\x1f]')
LONGEST = 259
#: What Windows lacks.
POSIX_ONLY = ("fork", "geteuid", "getuid", "fchmod", "posix_fallocate", "O_NOFOLLOW", "O_NONBLOCK", "mkfifo", "chown")


def check_name(path: Any) -> None:
    """Raise what Windows raises for a name that no file can have."""
    text = os.fspath(path)
    if len(text) > LONGEST:
        raise FileNotFoundError(errno.ENOENT, "The filename or extension is too long", text)
    for part in Path(text).parts[1:]:
        if RESERVED.fullmatch(part) or FORBIDDEN.search(part) or part.endswith((" ", ".")):
            raise OSError(errno.EINVAL, "The filename, directory name, or volume label syntax is incorrect", text)


class Windows:
    """The rules in force, within one folder; counts what was refused."""

    def __init__(self, folder: Path) -> None:
        self.folder = str(folder)
        self.refused: list[tuple[str, str]] = []

    def concerns(self, path: Any) -> bool:
        return isinstance(path, (str, os.PathLike)) and str(path).startswith(self.folder)

    def is_open(self, path: Any) -> bool:
        """Whether this process has a file open, under any spelling of its name."""
        wanted = os.path.realpath(os.fspath(path)).lower()
        handles = Path("/proc/self/fd")
        for each in handles.iterdir():
            try:
                if str(each.readlink()).lower() == wanted:
                    return True
            except OSError:
                continue
        return False

    def refuse_open(self, action: str, path: Any) -> None:
        if self.concerns(path) and Path(path).is_file() and self.is_open(path):
            self.refused.append((action, Path(path).name))
            raise PermissionError(errno.EACCES, "The process cannot access the file: it is being used by another process",
                str(path))


def install(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Windows:
    """Put the rules in force for everything below a folder."""
    windows = Windows(folder)

    def renaming(name: str) -> None:
        real: Callable[..., Any] = getattr(os, name)

        def rename(source: Any, target: Any, **keywords: Any) -> Any:
            if windows.concerns(source):
                check_name(target)
                windows.refuse_open(name, source)
                windows.refuse_open(name, target)
                if name == "rename" and Path(target).exists():
                    raise FileExistsError(errno.EEXIST, "Cannot create a file when that file already exists", str(target))
            return real(source, target, **keywords)

        _replace_function(name, rename, monkeypatch)

    def removing(name: str) -> None:
        real: Callable[..., Any] = getattr(os, name)

        def remove(path: Any, **keywords: Any) -> Any:
            windows.refuse_open(name, path)
            return real(path, **keywords)

        _replace_function(name, remove, monkeypatch)

    for name in ("rename", "replace"):
        renaming(name)
    for name in ("unlink", "remove"):
        removing(name)
    _opening(windows, monkeypatch)
    for name in POSIX_ONLY:
        monkeypatch.delattr(os, name, raising=False)
    monkeypatch.setattr(shutil, "_use_fd_functions", False)  # it opens folders
    monkeypatch.setattr(posix, "fcntl", None)
    monkeypatch.setattr(posix, "grp", None)
    monkeypatch.setattr(posix, "pwd", None)
    monkeypatch.setattr(posix, "READ_FLAGS", os.O_RDONLY)
    monkeypatch.setattr(Path, "home", lambda: folder)
    return windows


def _replace_function(name: str, function: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, name, function)
    if hasattr(pathlib, "_NormalAccessor"):  # Python 3.10 holds the functions there
        monkeypatch.setattr(pathlib._NormalAccessor, name, staticmethod(function), raising=False)


def _opening(windows: Windows, monkeypatch: pytest.MonkeyPatch) -> None:
    real_open, real_os_open, real_mkdir = io.open, os.open, os.mkdir

    def open_file(path: Any, *args: Any, **keywords: Any) -> Any:
        if windows.concerns(path):
            check_name(path)
        return real_open(path, *args, **keywords)

    def os_open(path: Any, flags: int, mode: int = 0o777, **keywords: Any) -> int:
        if windows.concerns(path):
            check_name(path)
            if Path(path).is_dir() and not flags & getattr(os, "O_TMPFILE", 0):
                raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return real_os_open(path, flags, mode, **keywords)

    def mkdir(path: Any, mode: int = 0o777, **keywords: Any) -> None:
        if windows.concerns(path):
            check_name(path)
        return real_mkdir(path, mode, **keywords)

    monkeypatch.setattr(io, "open", open_file)
    if hasattr(pathlib, "_NormalAccessor"):
        monkeypatch.setattr(pathlib._NormalAccessor, "open", staticmethod(open_file))
    monkeypatch.setattr(builtins, "open", open_file)
    monkeypatch.setattr(os, "open", os_open)
    _replace_function("mkdir", mkdir, monkeypatch)
