"""What code leaves behind that no profiler shows: variables of other functions, attributes, random numbers, caches."""

from __future__ import annotations

import functools
import gc
import random
import sys
from collections.abc import Iterable, Mapping
from types import CellType, CodeType, FunctionType
from typing import Any

import numpy as np
import torch

from ov_backend.guards.reads import outer_set_by
from ov_backend.guards.traced_code import own_code


def cells_of(code: CodeType) -> list[CellType]:
    """The variables of functions around it that the functions of this code set."""
    names = [code.co_freevars.index(name) for name in outer_set_by(code)]
    functions = [each for each in gc.get_referrers(code) if isinstance(each, FunctionType)]
    return [each.__closure__[i] for each in functions if each.__closure__ for i in names]


def table_of(module: torch.nn.Module, name: str) -> dict[str, Any]:
    """Where a module keeps an attribute of this name."""
    own = vars(module)
    return next((own[table] for table in ("_parameters", "_buffers", "_modules") if name in own.get(table, ())), own)


def is_same(value: Any, before: Any) -> bool:
    """Whether an attribute is what it was before: the same object, or an equal number or text."""
    if isinstance(value, tuple) and type(value) is type(before) and len(value) == len(before):
        return all(map(is_same, value, before))  # ``==`` would ask tensors for their values
    plain = (bool, int, float, str, bytes)
    return value is before or (type(value) is type(before) and isinstance(value, plain) and bool(value == before))


def random_state() -> tuple[Any, Any]:
    """The states of the generators of Python and numpy for the whole process, which can be compared."""
    state: Any = np.random.get_state()
    return random.getstate(), (state[0], state[1].tobytes(), *state[2:])


def clear_caches(executed: Mapping[CodeType, str], caches: Iterable[Any]) -> set[int]:
    """Clear the ``functools.lru_cache`` of every function that ran: it may hold fake tensors now.

    Returns what these and all other caches that the code may have asked held, by its ``id``.
    """
    own, found = own_code(executed), list(caches)
    for module in {sys.modules.get(name) for name in own.values()}:
        members = list(vars(module).values()) if module is not None else []
        for cls in [member for member in members if isinstance(member, type)]:
            members += [getattr(member, "__func__", member) for member in vars(cls).values()]
        found += [member for member in members if type(member) is functools._lru_cache_wrapper]
    held = gc.get_referents(*found)
    held += gc.get_referents(*(each for each in held if type(each) is dict))
    for cache in found:
        if getattr(cache.__wrapped__, "__code__", None) in own:
            cache.cache_clear()
    return set(map(id, held))
