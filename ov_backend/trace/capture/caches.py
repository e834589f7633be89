"""What ``functools.lru_cache`` keeps of the calls of functions."""

from __future__ import annotations

import functools
import gc
import sys
from collections.abc import Iterable, Mapping
from types import CodeType
from typing import Any

from ov_backend.guards.traced_code import own_code


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
