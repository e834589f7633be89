"""Which Python code a call runs: observed by a profile function, without anything of the package under test."""

from __future__ import annotations

import functools
import sys
import sysconfig
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests.helpers.frozen import get_referrers

_STANDARD = str(Path(sysconfig.get_path("stdlib")).resolve())
_PACKAGES = tuple(str(Path(package.__file__).parent) for package in (torch, np))


@functools.cache
def is_library(filename: str) -> bool:
    """Whether a file is torch's, numpy's or the standard library's; an installed package beside them is not."""
    of_python = filename.startswith(("<frozen", _STANDARD)) and "site-packages" not in filename
    return of_python or filename.startswith(_PACKAGES)


def observed(codes: set[types.CodeType], function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that adds the code outside torch, numpy and the standard library which it runs to ``codes``."""

    def note(frame: types.FrameType, event: str, _: Any) -> None:
        if event == "call" and not is_library(frame.f_code.co_filename):
            codes.add(frame.f_code)

    def call(*args: Any, **kwargs: Any) -> Any:
        before = sys.getprofile()
        sys.setprofile(note)
        try:
            return function(*args, **kwargs)
        finally:
            sys.setprofile(before)

    return call


def names_of(codes: set[types.CodeType]) -> set[str]:
    """The names of globals and attributes that code mentions, that of the functions inside it included."""
    names: set[str] = set()
    waiting = list(codes)
    while waiting:
        code = waiting.pop()
        names.update(code.co_names)
        names.update(each for const in code.co_consts for each in _strings(const))
        waiting += [const for const in code.co_consts if isinstance(const, types.CodeType)]
    return names


def _strings(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    return [each for item in value for each in _strings(item)] if isinstance(value, (tuple, frozenset)) else []


def functions_of(codes: set[types.CodeType]) -> list[types.FunctionType]:
    """The functions that have this code, in an order that is the same in every process."""
    found = [value for value in get_referrers(*codes) if isinstance(value, types.FunctionType) and value.__code__ in codes]
    return sorted(found, key=function_name)


def function_name(function: types.FunctionType) -> str:
    """Names a function alike in every process."""
    return f"{function.__module__}.{function.__qualname__}:{function.__code__.co_firstlineno}"
