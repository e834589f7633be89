"""Of which variables a function asks for the class or the table of attributes, told from its bytecode.

In a trace the class of a tensor is another, and its table is not empty.
"""

from __future__ import annotations

import dis
import functools
import types

from ov_backend.guards.reads import ATTRIBUTES, CALLS, GLOBALS, steps_of

#: Stands for the class of something that no variable's name leads to.
UNNAMED = ("", ())


@functools.lru_cache(maxsize=16384)
def classes_asked_for(code: types.CodeType) -> frozenset[tuple[str, tuple[str, ...]]]:
    """The variables, each with the attributes that are read of it, of which a code object asks for the class.

    ``type(x)`` and ``x.__class__`` are meant; :data:`UNNAMED` stands for all other values. ``self`` is left out.
    """
    return _asked_for(code, "__class__", "type")


@functools.lru_cache(maxsize=16384)
def tables_asked_for(code: types.CodeType) -> frozenset[tuple[str, tuple[str, ...]]]:
    """The variables of which a code object asks for the table of attributes, ``x.__dict__`` or ``vars(x)``, likewise.

    What no variable's name leads to is left out: it is mostly the table of a class, ``type(x).__dict__``.
    """
    return _asked_for(code, "__dict__", "vars") - {UNNAMED}


def _asked_for(code: types.CodeType, attribute: str, function: str) -> frozenset[tuple[str, tuple[str, ...]]]:
    """The variables of which an attribute is read, or which a builtin function is called with."""
    if attribute not in code.co_names and function not in code.co_names:
        return frozenset()
    instructions = list(steps_of(code))
    found = set[tuple[str, tuple[str, ...]]]()
    for i, each in enumerate(instructions):
        if each.opname in ATTRIBUTES and each.argval == attribute:
            found.add(_variable_before(instructions[:i]))
        elif each.opname in GLOBALS and each.argval == function and not _is_second(instructions[:i]):
            found.add(_called_with(instructions[i + 1 :]))
    return frozenset(asked for asked in found if asked[0] not in ("self", "cls"))


def _is_second(before: list[dis.Instruction]) -> bool:
    """Whether what comes next stands in an ``isinstance`` or ``issubclass``."""
    return any(each.opname in GLOBALS and each.argval in ("isinstance", "issubclass") for each in before[-8:])


def _variable_before(before: list[dis.Instruction]) -> tuple[str, tuple[str, ...]]:
    attributes = list[str]()
    for each in reversed(before):
        if each.opname in ATTRIBUTES:
            attributes.insert(0, str(each.argval))
        elif each.opname.startswith(("LOAD_FAST", "LOAD_DEREF", "LOAD_CLASSDEREF")):
            name = each.argval[-1] if isinstance(each.argval, tuple) else each.argval
            return str(name), tuple(attributes)
        else:
            return ("self", ()) if each.opname in (*GLOBALS, "LOAD_CONST") else UNNAMED
    return UNNAMED


def _called_with(following: list[dis.Instruction]) -> tuple[str, tuple[str, ...]]:
    """The one argument of a call, if it is a variable or attributes of one."""
    for i, each in enumerate(following):
        if each.opname in CALLS:
            return _variable_before(following[:i]) if each.arg == 1 else UNNAMED
        if each.opname not in ATTRIBUTES and not (i == 0 and each.opname.startswith("LOAD_")):
            return UNNAMED
    return UNNAMED
