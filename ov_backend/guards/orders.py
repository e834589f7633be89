"""What in a function may depend on an order or an address that differs between processes, told from its bytecode."""

from __future__ import annotations

import dis
import functools
import types
from itertools import pairwise

from ov_backend.guards.reads import ATTRIBUTES, CALLS, GLOBALS, names_in, operations_of, steps_of

_LOADS = GLOBALS | {"LOAD_FAST", "LOAD_FAST_BORROW", "LOAD_FAST_CHECK", "LOAD_DEREF"}
#: Functions that go through what they are given.
_LOOPS = frozenset(
    {"items", "keys", "values", "iter", "list", "tuple", "dict", "enumerate", "zip", "map", "filter", "sum", "min", "max"}
)
_LOOP_OPERATIONS = frozenset({"GET_ITER", "CALL_FUNCTION_EX", "DICT_UPDATE", "DICT_MERGE"})


@functools.lru_cache(maxsize=16384)
def lists_attributes(code: types.CodeType) -> bool:
    """Whether a code object, or one defined in it, may go through the attributes of an object in their order."""
    if any(lists_attributes(constant) for constant in code.co_consts if isinstance(constant, types.CodeType)):
        return True
    loops = not _LOOPS.isdisjoint(code.co_names) or not _LOOP_OPERATIONS.isdisjoint(operations_of(code))
    return "vars" in code.co_names or ("__dict__" in code.co_names and loops)


#: Functions that make a set, or answer by an object's address or the process's seed of hashes; and the methods that do.
_BY_HASHES = frozenset({"set", "frozenset", "id", "hash"})
_METHODS_BY_HASHES = frozenset(
    {"union", "difference", "intersection", "symmetric_difference", "__hash__", "__repr__", "__str__"}
    | {f"__{reflected}{name}__" for reflected in ("", "r") for name in ("or", "and", "xor", "sub")}
)
_MAKES_SETS = frozenset({"BUILD_SET", "SET_ADD", "SET_UPDATE"})
_VIEWS = frozenset({"keys", "items"})
_OPERATORS_AS_FUNCTIONS = frozenset({"or_", "and_", "xor", "sub", "ior", "iand", "ixor", "isub"})
_SET_OPERATORS = frozenset({"|", "&", "^", "-", "|=", "&=", "^=", "-="})
_OLD_SET_OPERATORS = frozenset(f"{kind}_{name}" for kind in ("BINARY", "INPLACE") for name in ("OR", "AND", "XOR", "SUBTRACT"))


@functools.lru_cache(maxsize=16384)
def goes_by_hashes(code: types.CodeType) -> bool:
    """Whether a code object, or one defined in it, may go through a set that it makes, or reads a hash or an address."""
    if any(goes_by_hashes(constant) for constant in code.co_consts if isinstance(constant, types.CodeType)):
        return True
    if not _METHODS_BY_HASHES.isdisjoint(names_in(code)):
        return True
    if (_BY_HASHES | _VIEWS).isdisjoint(names_in(code)) and _MAKES_SETS.isdisjoint(operations_of(code)):
        return False
    instructions = list(steps_of(code))
    if not _BY_HASHES.isdisjoint(each.argval for each in instructions if each.opname in GLOBALS):
        return True
    joins = any(map(_may_join_views, instructions)) or not _OPERATORS_AS_FUNCTIONS.isdisjoint(code.co_names)
    if joins and any(_is_kept_view(instructions, i) for i in range(len(instructions))):
        return True
    built = (after for each, after in pairwise(instructions) if each.opname in _MAKES_SETS)
    return any(after.opname != "CONTAINS_OP" for after in built)


def _is_kept_view(instructions: list[dis.Instruction], i: int) -> bool:
    """Whether an instruction reads ``keys`` or ``items`` and the view could be joined with another one.

    It could not where it is used up at once: ``list(x.keys())``, ``for key in x.keys()``, ``key in x.keys()``.
    """
    if instructions[i].argval not in _VIEWS or instructions[i].opname not in (*ATTRIBUTES, *GLOBALS, "LOAD_CONST"):
        return False
    call, user = [*instructions[i + 1 : i + 3], None, None][:2]
    if call is None or user is None or call.opname not in (*CALLS, "CALL_METHOD") or call.arg:
        return True
    if user.opname in ("GET_ITER", "CONTAINS_OP"):
        return False
    start = i - 1
    while start > 0 and instructions[start].opname in ATTRIBUTES:
        start -= 1
    function = instructions[start - 1] if start > 0 and instructions[start].opname in _LOADS else None
    lists = function is not None and function.opname in GLOBALS and function.argval in ("list", "tuple", "sorted", "len")
    return not (lists and user.opname in CALLS and user.arg == 1)


def _may_join_views(each: dis.Instruction) -> bool:
    return each.opname in _OLD_SET_OPERATORS or (each.opname == "BINARY_OP" and each.argrepr in _SET_OPERATORS)
