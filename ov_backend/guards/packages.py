"""What stands in a package that is known by its version, and does not come from it: programs put values of their own there."""

from __future__ import annotations

import collections
import functools
import sys
import types
from typing import Any

import numpy as np
import torch

from ov_backend.guards.describe import BUILTINS, SCALARS, TORCH_VALUES
from ov_backend.guards.versions import is_of_package

#: The most items of a package's container that is described by value; longer ones are registries.
_PLAIN_ITEMS = 4096
_MIXED_ITEMS = 64
_CONTAINERS = (dict, list, tuple, set, frozenset, collections.deque)
_DATA = (*SCALARS, *TORCH_VALUES, np.generic, np.ndarray, torch.Tensor)
_FUNCTIONS = (types.FunctionType, types.MethodType)
#: Objects of Python's library that no package keeps on a class.
_PUT_THERE = (types.MethodType, functools.partial, functools.partialmethod, types.SimpleNamespace)
#: Packages that put functions of their own on PyTorch's classes when they load a model.
PUT_HELPERS = frozenset({"accelerate", "diffusers", "peft", "transformers"})
#: Members of classes that are written in C.
IN_C = (*BUILTINS, types.GetSetDescriptorType, types.MemberDescriptorType, types.ClassMethodDescriptorType)
#: Of classes on which a program can put values.
_HEAP_TYPE, _IMMUTABLE_TYPE = 1 << 9, 1 << 8


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


def is_of_user(value: Any) -> bool:
    """Whether an object that stands in a package is of a class that no package's version stands for."""
    return not isinstance(value, (type, *_FUNCTIONS, types.ModuleType)) and not is_of_package(type(value))


def takes_members(cls: type) -> bool:
    """Whether a program can put something on a class."""
    return bool(cls.__flags__ & _HEAP_TYPE) and not cls.__flags__ & _IMMUTABLE_TYPE


def functions_of(member: Any) -> list[Any]:
    """The functions that a member of a class consists of; none for values."""
    if isinstance(member, (property, types.DynamicClassAttribute)):
        return [member.fget, member.fset, member.fdel]
    if isinstance(member, (staticmethod, classmethod)):
        return [member.__func__]
    if isinstance(member, functools.cached_property):
        return [member.func]
    return [member] if isinstance(member, types.FunctionType) else []


def is_data(member: Any) -> bool:
    """Whether a member of a package's class is a plain value, a class, or something that only a program can have put there."""
    return isinstance(member, (*_DATA, *_CONTAINERS, type, torch.nn.Module)) or is_put_there(member)


def is_put_there(member: Any) -> bool:
    """Whether a member of a package's class is an object that only a program can have put there."""
    return isinstance(member, _PUT_THERE) or is_of_user(member)
