"""Whose the folder of a store and its entries are: only what this user or root wrote, and nobody else can change, is used.

An entry becomes a part of a network. Somebody who may write into the folder could plant an entry, and it would answer. On
Windows the owner in the access control list decides; where it cannot be read, a folder has to lie in the user's profile.
"""

from __future__ import annotations

import ctypes
import functools
import os
import sys
from pathlib import Path
from typing import Any

from ov_backend.core import posix

#: The groups of administrators and the system itself, which stand for root.
_TRUSTED_SIDS = ("S-1-5-32-544", "S-1-5-18")
_TOKEN_QUERY, _TOKEN_USER = 0x0008, 1
_SE_FILE_OBJECT, _OWNER = 1, 1


def folder_problem(folder: Path) -> str:
    """Why the entries of a folder are not used, with what to do about it; "" if they are, or if there is no such folder."""
    try:
        status = folder.stat()
    except OSError:
        return ""
    if not posix.has_owners():
        return _windows_problem(folder)
    if posix.foreign_owner(status):
        return f"it belongs to user {status.st_uid}, and this process runs as user {posix.user_id()}; {_ADVICE}"
    if posix.others_may_write(status):
        return f"other users may write to it (mode {status.st_mode & 0o7777:04o}); run chmod go-w on it, or {_ADVICE}"
    return ""


_ADVICE = "choose a folder of your own (--cache-dir or OPENVINO_TORCH_CACHE_DIR)"


def check_entry(status: os.stat_result) -> None:
    """Check the status of an entry's open file. Raises PermissionError if another user wrote it, or may change it."""
    if posix.foreign_owner(status):
        raise PermissionError(f"it belongs to user {status.st_uid}")
    if posix.others_may_write(status):
        raise PermissionError(f"other users may write to it (mode {status.st_mode & 0o7777:04o})")


def make_folder(folder: Path) -> None:
    """Create a folder that only its owner may write to, whatever the process's umask is; an existing one stays as it is."""
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o755, exist_ok=True)


def _windows_problem(folder: Path) -> str:
    owner, user = windows_owner(folder), windows_user()
    if owner and user:
        trusted = owner == user or owner in _TRUSTED_SIDS
        return "" if trusted else f"it belongs to {owner}, and this process runs as {user}; {_ADVICE}"
    if folder.resolve().is_relative_to(Path.home().resolve()):
        return ""
    return f"its owner cannot be read and it lies outside of {Path.home()}; {_ADVICE}"


def windows_owner(folder: Path) -> str:
    """The security identifier of a folder's owner on Windows, such as "S-1-5-21-..."; "" where it cannot be read."""
    try:
        api = _windows()
        sid, descriptor = ctypes.c_void_p(), ctypes.c_void_p()
        error = api.advapi32.GetNamedSecurityInfoW(
            str(folder), _SE_FILE_OBJECT, _OWNER, ctypes.byref(sid), None, None, None, ctypes.byref(descriptor)
        )
        if error:
            return ""
        try:
            return _text_of(api, sid)
        finally:
            api.kernel32.LocalFree(descriptor)
    except (AttributeError, OSError, ValueError):
        return ""


@functools.cache
def windows_user() -> str:
    """The security identifier of the user whose rights this process has, on Windows; "" where it cannot be read."""
    try:
        api = _windows()
        token, size = ctypes.c_void_p(), ctypes.c_ulong()
        api.kernel32.GetCurrentProcess.restype = ctypes.c_void_p
        process = ctypes.c_void_p(api.kernel32.GetCurrentProcess())
        if not api.advapi32.OpenProcessToken(process, _TOKEN_QUERY, ctypes.byref(token)):
            return ""
        try:
            api.advapi32.GetTokenInformation(token, _TOKEN_USER, None, 0, ctypes.byref(size))
            buffer = ctypes.create_string_buffer(size.value)
            if not api.advapi32.GetTokenInformation(token, _TOKEN_USER, buffer, size, ctypes.byref(size)):
                return ""
            return _text_of(api, ctypes.c_void_p.from_buffer(buffer))  # TOKEN_USER begins with a pointer to the identifier
        finally:
            api.kernel32.CloseHandle(token)
    except (AttributeError, OSError, ValueError):
        return ""


def _windows() -> Any:
    """The loader of Windows' libraries. Raises AttributeError if this is another system."""
    if sys.platform != "win32":
        raise AttributeError("windll")
    return ctypes.windll


def _text_of(api: Any, sid: ctypes.c_void_p) -> str:
    text = ctypes.c_wchar_p()
    if not api.advapi32.ConvertSidToStringSidW(sid, ctypes.byref(text)):
        return ""
    try:
        return text.value or ""
    finally:
        api.kernel32.LocalFree(text)
