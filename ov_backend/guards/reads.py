"""What a function reads and asks, told from its bytecode: chains of names such as ``shared.opts.upcast_attn``, classes of values.

In a trace the class of a tensor is another, and its table of attributes is not empty.
"""

from __future__ import annotations

import dis
import functools
import inspect
import re
import types
from collections.abc import Iterable, Iterator
from typing import NamedTuple

GLOBALS = frozenset({"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"})
ATTRIBUTES = frozenset({"LOAD_ATTR", "LOAD_METHOD"})
CALLS = frozenset({"CALL", "CALL_FUNCTION"})
_COMPARISONS = frozenset({"IS_OP", "COMPARE_OP", "CONTAINS_OP"})
_SETS_GLOBALS = frozenset({"STORE_GLOBAL", "DELETE_GLOBAL"})
_TENSORS = frozenset({"Tensor", "Parameter"})
#: Stand between the parts of a chain and change nothing of it.
BETWEEN = frozenset({"CACHE", "EXTENDED_ARG", "PUSH_NULL", "PRECALL", "NOP", "RESUME"})
#: Stands for the class of something that no variable's name leads to.
UNNAMED = ("", ())


class Chain(NamedTuple):
    """A global name and the attributes that are read of it one after the other."""

    root: str
    attributes: tuple[str, ...]


@functools.lru_cache(maxsize=64)
def instructions_of(code: types.CodeType) -> tuple[dis.Instruction, ...]:
    """The instructions of a code object, kept a while: a walk asks several questions about a function one after the other."""
    return tuple(dis.get_instructions(code))


@functools.lru_cache(maxsize=64)
def steps_of(code: types.CodeType) -> tuple[dis.Instruction, ...]:
    """The instructions of a code object without those of :data:`BETWEEN`."""
    return tuple(each for each in instructions_of(code) if each.opname not in BETWEEN)


@functools.lru_cache(maxsize=16384)
def operations_of(code: types.CodeType) -> frozenset[str]:
    """The names of the operations in a code object, such as ``BUILD_SET``.

    Taking a code object apart takes a hundred times as long: most questions are answered by what does not stand in it.
    """
    return frozenset(dis.opname[operation] for operation in set(code.co_code[::2]))


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
    for instruction in () if GLOBALS.isdisjoint(operations_of(code)) else steps_of(code):
        if root and instruction.opname in ATTRIBUTES:
            attributes.append(str(instruction.argval))
            continue
        if root:
            yield Chain(root, tuple(attributes))
        root, attributes = (str(instruction.argval), []) if instruction.opname in GLOBALS else ("", [])
    if root:
        yield Chain(root, tuple(attributes))


@functools.lru_cache(maxsize=16384)
def globals_set_by(code: types.CodeType) -> frozenset[str]:
    """The globals that a code object sets or deletes."""
    if _SETS_GLOBALS.isdisjoint(operations_of(code)):
        return frozenset()
    return frozenset(str(each.argval) for each in instructions_of(code) if each.opname in _SETS_GLOBALS)


@functools.lru_cache(maxsize=16384)
def outer_set_by(code: types.CodeType) -> frozenset[str]:
    """The variables of functions around it that a code object sets or deletes (``nonlocal``)."""
    instructions = instructions_of(code) if code.co_freevars else ()
    names = {str(each.argval) for each in instructions if each.opname in ("STORE_DEREF", "DELETE_DEREF")}
    return frozenset(names.intersection(code.co_freevars))


@functools.lru_cache(maxsize=16384)
def compares_with_tensor(code: types.CodeType) -> bool:
    """Whether a code object asks whether the class of something is ``torch.Tensor``; in a trace it is another."""
    if _TENSORS.isdisjoint(code.co_names):
        return False
    instructions = instructions_of(code)
    if "__class__" not in code.co_names and not any(each.opname in GLOBALS and each.argval == "type" for each in instructions):
        return False
    places = (i for i, each in enumerate(instructions) if each.opname in (*ATTRIBUTES, *GLOBALS) and each.argval in _TENSORS)
    return any(_is_compared(instructions[place + 1 :]) for place in places)


def _is_compared(following: Iterable[dis.Instruction]) -> bool:
    """Whether the value on top of the stack, or a tuple or set made of it, goes into a comparison."""
    depth = 1  # of the value, from the top of the stack
    for each in following:
        if each.opname in _COMPARISONS and depth <= 2:
            return True
        depth += dis.stack_effect(each.opcode, each.arg, jump=False)
        if depth < 1 and each.opname not in ("BUILD_TUPLE", "BUILD_SET", "BUILD_LIST"):
            return False
        depth = max(depth, 1)
    return False


@functools.lru_cache(maxsize=16384)
def imports_of(code: types.CodeType) -> frozenset[str]:
    """The modules that a code object imports while it runs, and those of the functions defined in it, as they are written."""
    inner = [imports_of(constant) for constant in code.co_consts if isinstance(constant, types.CodeType)]
    instructions = instructions_of(code) if "IMPORT_NAME" in operations_of(code) else ()
    own = {str(each.argval) for each in instructions if each.opname == "IMPORT_NAME"}
    return frozenset(own.union(*inner))


#: Builtins that read an attribute by a name, and all other ways to read what no name in the code stands for.
_BY_NAME = frozenset({"getattr", "hasattr"})
_FORMATTERS = frozenset({"format", "format_map", "vformat"})
_UNNAMED = frozenset(
    {"vars", "dir", "__dict__", "attrgetter", "methodcaller", "__getattribute__", "__getstate__", "__slots__"}
    | {"pickle", "dumps", "dump", "Pickler", "marshal", "copyreg"}
)
#: Modules of the standard library whose functions read any attribute of what they are given.
READERS = frozenset({"copy", "dataclasses", "inspect", "pickle", "copyreg", "pprint"})
#: What a function of theirs names that only says of which class something is, such as ``inspect.isfunction``.
_ASK_FOR_CLASS = frozenset({"isinstance", "type", "types"})


def asks_for_class(code: types.CodeType) -> bool:
    """Whether a code object does nothing but compare the class of what it is given with classes such as those of ``types``."""
    chains = list(chains_of(code))
    named = {name for chain in chains for name in (chain.root, *chain.attributes)}
    return named == set(code.co_names) and {chain.root for chain in chains} <= _ASK_FOR_CLASS


@functools.lru_cache(maxsize=16384)
def reads_unnamed(code: types.CodeType) -> bool:
    """Whether a code object, or one defined in it, may read attributes whose names do not stand in it."""
    if any(reads_unnamed(constant) for constant in code.co_consts if isinstance(constant, types.CodeType)):
        return True
    if code.co_name in ("__getattr__", "__getattribute__"):
        return False  # the name stands in the code that asks for it
    if not _UNNAMED.isdisjoint(code.co_names) or (not _BY_NAME.isdisjoint(code.co_names) and _computes_names(code)):
        return True
    return _formats_attributes(code) or _has_patterns(code)


def _has_patterns(code: types.CodeType) -> bool:
    """Whether a code object has patterns of classes, such as ``case Point(x, y)``."""
    return "MATCH_CLASS" in operations_of(code)


def _formats_attributes(code: types.CodeType) -> bool:
    """Whether a code object formats a text that may name attributes, such as ``"{0.scale}"``; one from elsewhere may."""
    if _FORMATTERS.isdisjoint(code.co_names):
        return False
    texts = [constant for constant in code.co_consts if isinstance(constant, str) and "{" in constant]
    return not texts or any(re.search(r"\{[^{}]*[.\[]", text) for text in texts)


def _computes_names(code: types.CodeType) -> bool:
    """Whether some ``getattr`` or ``hasattr`` is given a name that is no constant."""
    instructions = list(steps_of(code))
    named = 0
    for i, instruction in enumerate(instructions):
        if instruction.opname in CALLS and instruction.arg in (2, 3) and i >= instruction.arg:
            name = instructions[i - (instruction.arg - 1)]
            named += name.opname == "LOAD_CONST" and isinstance(name.argval, str)
    reads = sum(each.opname in GLOBALS and each.argval in _BY_NAME for each in instructions)
    return named < reads


#: Members of classes that are read by a statement, or a function of Python's, without their names.
_OF_PATTERNS = frozenset({"__match_args__"})
_READ_BY = {inspect.getdoc.__code__: "__doc__", inspect.signature.__code__: "__signature__"}


def members_read_by(codes: Iterable[types.CodeType]) -> frozenset[str]:
    """The members of classes that some functions of Python's library read, of those among the code objects."""
    return frozenset(_READ_BY[code] for code in codes if code in _READ_BY)


@functools.lru_cache(maxsize=16384)
def names_in(code: types.CodeType) -> frozenset[str]:
    """Every name that a code object could read of anything: those in it, and strings, for ``getattr`` takes them."""
    names = {*code.co_names, *(constant for constant in code.co_consts if isinstance(constant, str) and constant.isidentifier())}
    if _has_patterns(code):
        names |= _OF_PATTERNS
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= names_in(constant)
        elif isinstance(constant, tuple):
            names |= {item for item in constant if isinstance(item, str)}
    return frozenset(names)


@functools.lru_cache(maxsize=16384)
def asked_of_variables(code: types.CodeType) -> tuple[tuple[str, frozenset[tuple[str, tuple[str, ...]]]], ...]:
    """The variables, each with the attributes read of it, of which code asks for the class, or for the table of attributes.

    ``type(x)``, ``x.__class__``, ``vars(x)`` and ``x.__dict__`` are meant, and ``self`` is left out. :data:`UNNAMED` stands for
    all other values, of which the table is left out: it is mostly that of a class, ``type(x).__dict__``.
    """
    return ("class", _asked_for(code, "__class__", "type")), ("__dict__", _asked_for(code, "__dict__", "vars") - {UNNAMED})


def _asked_for(code: types.CodeType, attribute: str, function: str) -> frozenset[tuple[str, tuple[str, ...]]]:
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
