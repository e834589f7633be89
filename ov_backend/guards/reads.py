"""What a function reads from outside itself, told from its bytecode: chains of names such as ``shared.opts.upcast_attn``."""

from __future__ import annotations

import dis
import functools
import types
from collections.abc import Iterator
from typing import NamedTuple

_GLOBAL = frozenset({"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"})
_ATTRIBUTE = frozenset({"LOAD_ATTR", "LOAD_METHOD"})
_CALL = frozenset({"CALL", "CALL_FUNCTION"})
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
def imports_of(code: types.CodeType) -> frozenset[str]:
    """The modules that a code object imports while it runs, and those of the functions defined in it, as they are written."""
    inner = [imports_of(constant) for constant in code.co_consts if isinstance(constant, types.CodeType)]
    own = {str(each.argval) for each in dis.get_instructions(code) if each.opname == "IMPORT_NAME"}
    return frozenset(own.union(*inner))


#: Builtins that read an attribute by a name, and all other ways to read what no name in the code stands for.
_BY_NAME = frozenset({"getattr", "hasattr"})
_UNNAMED = frozenset({"vars", "dir", "__dict__", "attrgetter", "methodcaller", "__getattribute__", "__getstate__", "__slots__"})
#: Modules of the standard library whose functions read any attribute of what they are given.
_READERS = frozenset({"copy", "dataclasses", "inspect", "pickle", "copyreg", "pprint"})


@functools.lru_cache(maxsize=16384)
def reads_unnamed(code: types.CodeType) -> bool:
    """Whether a code object, or one defined in it, may read attributes whose names do not stand in it."""
    if any(reads_unnamed(constant) for constant in code.co_consts if isinstance(constant, types.CodeType)):
        return True
    if code.co_name in ("__getattr__", "__getattribute__"):
        return False  # the name stands in the code that asks for it
    return not _UNNAMED.isdisjoint(code.co_names) or (not _BY_NAME.isdisjoint(code.co_names) and _computes_names(code))


def _computes_names(code: types.CodeType) -> bool:
    """Whether some ``getattr`` or ``hasattr`` is given a name that is no constant."""
    instructions = [each for each in dis.get_instructions(code) if each.opname not in _BETWEEN]
    named = 0
    for i, instruction in enumerate(instructions):
        if instruction.opname in _CALL and instruction.arg in (2, 3) and i >= instruction.arg:
            name = instructions[i - (instruction.arg - 1)]
            named += name.opname == "LOAD_CONST" and isinstance(name.argval, str)
    reads = sum(each.opname in _GLOBAL and each.argval in _BY_NAME for each in instructions)
    return named < reads


def may_read_unnamed(code: types.CodeType, module: str, versioned: bool) -> bool:
    """Whether code that ran may have read attributes whose names stand in no code that ran.

    Args:
        code: the code object.
        module: its Python module.
        versioned: whether a package's version stands for it; of those, only the readers of the standard library count.
    """
    return module.partition(".")[0] in _READERS if versioned else reads_unnamed(code)


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
