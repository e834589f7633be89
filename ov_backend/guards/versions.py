"""Which code is known by the version of its package, and which belongs to the program."""

from __future__ import annotations

import functools
import pathlib
import sys
import sysconfig
import types
from typing import Any

#: Packages whose code is identified by their version, not by their bytecode.
VERSIONED = (
    *("torch", "torchgen", "numpy", "openvino", "einops", "sympy", "mpmath", "packaging", "typing_extensions", "safetensors"),
    *("psutil", "PIL", "tqdm", "requests", "filelock", "regex", "tokenizers", "yaml"),
)
#: Modules that download and report: no part of what a network computes, and they draw a new id in every process.
_REPORTING = ("huggingface_hub", "transformers.utils.hub", "diffusers.utils.hub_utils")
#: Where Python's own modules lie.
_STANDARD = (sysconfig.get_path("stdlib"), sys.base_prefix)
#: Of classes that are no part of the interpreter.
HEAP_TYPE = 1 << 9


def module_of(function: types.FunctionType) -> str:
    """The Python module in which a function was written; what ``functools.wraps`` copied onto it does not count."""
    return str(function.__globals__.get("__name__", ""))


def versioned(module: Any) -> bool:
    """Whether a Python module belongs to a package that is known by its version."""
    if not isinstance(module, str):  # a class may say anything there
        return False
    top = module.partition(".")[0]
    return top in VERSIONED or (top in sys.stdlib_module_names and _is_standard(module)) or module.startswith(_REPORTING)


def is_of_package(cls: type) -> bool:
    """Whether a class belongs to a package that is known by its version.

    A class that a program makes with ``types.new_class`` or ``dataclasses.make_dataclass`` names Python's own module.
    """
    module = cls.__module__
    if not versioned(module) or module.partition(".")[0] not in sys.stdlib_module_names or not cls.__flags__ & HEAP_TYPE:
        return versioned(module)
    return getattr(sys.modules.get(module), "__dict__", {}).get(cls.__name__) is cls or "." in cls.__qualname__


@functools.lru_cache(maxsize=1024)
def _is_standard(name: str) -> bool:
    """Whether a module is the standard library's, and not a user's own of the same name."""
    file = getattr(sys.modules.get(name), "__file__", None)
    if file is None:
        return True
    path = pathlib.Path(file)
    return any(map(path.is_relative_to, _STANDARD)) and not {"site-packages", "dist-packages"}.intersection(path.parts)


@functools.lru_cache(maxsize=1024)
def is_installed(name: str) -> bool:
    """Whether a module is a part of Python or of an installed package, and no code of the program itself."""
    file = getattr(sys.modules.get(name), "__file__", None) or ""
    return versioned(name) or not {"site-packages", "dist-packages"}.isdisjoint(pathlib.PurePath(file).parts)
