"""What stands in a package that is known by its version, and does not come from it: programs put values of their own there."""

from __future__ import annotations

import collections
import sys
import types
from typing import Any

import numpy as np
import torch

from ov_backend.guards.describe import GENERATORS, SCALARS, STREAMS, TORCH_VALUES, is_of_package, versioned

#: The most items of a package's container that is described by value; longer ones are registries.
_PLAIN_ITEMS = 4096
_MIXED_ITEMS = 64
_CONTAINERS = (dict, list, tuple, set, frozenset, collections.deque)
_DATA = (*SCALARS, *TORCH_VALUES, np.generic, np.ndarray, torch.Tensor)
_FUNCTIONS = (types.FunctionType, types.MethodType)


def is_container(value: Any) -> bool:
    """Whether a value is a container, other than the table of all Python modules."""
    return isinstance(value, _CONTAINERS) and value is not sys.modules


def is_by_value(container: Any) -> bool:
    """Whether a package's container is described by what it holds: plain data, or a few things that no version stands for."""
    count = 0
    waiting, mixed = [container], False
    while waiting:
        value = waiting.pop()
        if isinstance(value, _CONTAINERS):
            waiting += [*value.keys(), *value.values()] if isinstance(value, dict) else value
            count += len(value)
        elif not isinstance(value, _DATA):
            mixed = True
        if count > (_MIXED_ITEMS if mixed else _PLAIN_ITEMS):
            return False
    return True


def is_of_library(value: Any) -> bool:
    """Whether an object is one of a library's, such as an operator, and not one of Python's containers, streams or buffers."""
    top = type(value).__module__.partition(".")[0]
    return versioned(top) and top not in sys.stdlib_module_names and not isinstance(value, (*GENERATORS, *STREAMS))


def is_of_user(value: Any) -> bool:
    """Whether an object that stands in a package is of a class that no package's version stands for."""
    return not isinstance(value, (type, *_FUNCTIONS, types.ModuleType)) and not is_of_package(type(value))

