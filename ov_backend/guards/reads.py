"""What a function reads from outside itself, told from its bytecode: chains of names such as ``shared.opts.upcast_attn``."""

from __future__ import annotations

import dis
import functools
import types
from collections.abc import Iterator
from typing import NamedTuple

_GLOBAL = frozenset({"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"})
_ATTRIBUTE = frozenset({"LOAD_ATTR", "LOAD_METHOD"})
#: Stand between the parts of a chain and change nothing of it.
_BETWEEN = frozenset({"CACHE", "EXTENDED_ARG", "PUSH_NULL", "PRECALL", "NOP", "RESUME"})


class Chain(NamedTuple):
    """A global name and the attributes that are read of it one after the other."""

    root: str
    attributes: tuple[str, ...]


@functools.lru_cache(maxsize=16384)
def chains_of(code: types.CodeType) -> tuple[Chain, ...]:
    """The chains that a code object reads, and those of the functions defined in it; each once."""
    chains = dict.fromkeys(_chains(code))
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            chains.update(dict.fromkeys(chains_of(constant)))
    return tuple(chains)


def _chains(code: types.CodeType) -> Iterator[Chain]:
    root, attributes = "", list[str]()
    for instruction in dis.get_instructions(code):
        if instruction.opname in _BETWEEN:
            continue
        if root and instruction.opname in _ATTRIBUTE:
            attributes.append(str(instruction.argval))
            continue
        if root:
            yield Chain(root, tuple(attributes))
        root, attributes = (str(instruction.argval), []) if instruction.opname in _GLOBAL else ("", [])
    if root:
        yield Chain(root, tuple(attributes))


@functools.lru_cache(maxsize=16384)
def names_in(code: types.CodeType) -> frozenset[str]:
    """Every name that a code object could read of anything: those in it, and strings, for ``getattr`` takes them."""
    names = {*code.co_names, *(constant for constant in code.co_consts if isinstance(constant, str) and constant.isidentifier())}
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= names_in(constant)
        elif isinstance(constant, tuple):
            names |= {item for item in constant if isinstance(item, str)}
    return frozenset(names)
