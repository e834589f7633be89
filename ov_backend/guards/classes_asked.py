"""Of which variables a function asks for the class, told from its bytecode; in a trace the class of a tensor is another."""

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
    instructions = list(steps_of(code))
    found = set[tuple[str, tuple[str, ...]]]()
    for i, each in enumerate(instructions):
        if each.opname in ATTRIBUTES and each.argval == "__class__":
            found.add(_variable_before(instructions[:i]))
        elif each.opname in GLOBALS and each.argval == "type" and not _is_second(instructions[:i]):
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
