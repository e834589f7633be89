"""The code that a trace has run: what a graph depends on is found by going through this code, and through no other."""

from __future__ import annotations

import functools
import types
from collections.abc import Mapping
from dataclasses import dataclass

from ov_backend.guards.reads import READERS, asks_for_class, members_read_by, names_in, operations_of, reads_unnamed
from ov_backend.guards.versions import is_installed, versioned

#: This package runs in every trace; its version is in every key.
_OWN = __package__.partition(".")[0]
#: Functions that go through what they are given.
_LOOPS = frozenset(
    {"items", "keys", "values", "iter", "list", "tuple", "dict", "enumerate", "zip", "map", "filter", "sum", "min", "max"}
)
#: Names by which code gets a number that is the object's own.
_OF_ADDRESSES = frozenset({"id", "hash", "__hash__"})
_LOOP_OPERATIONS = frozenset({"GET_ITER", "CALL_FUNCTION_EX", "DICT_UPDATE", "DICT_MERGE"})


@dataclass(frozen=True)
class TracedCode:
    """The code of one trace, apart from packages that are known by their version.

    Attributes:
        codes: the code objects.
        names: every name that stands in the code.
        computes_names: whether it may read attributes by other names, too.
        roots: functions that ran although no attribute or global name leads to them from the module.
        own_names: the names in these, without those of PyTorch's and Python's own code.
        lists_attributes: whether it may go through the attributes of an object in their order.
        installed: whether all of it is of packages that are installed, none of it the program's.
    """

    codes: frozenset[types.CodeType]
    names: frozenset[str] = frozenset()
    computes_names: bool = False
    roots: tuple[types.FunctionType, ...] = ()
    own_names: frozenset[str] = frozenset()
    lists_attributes: bool = False
    installed: bool = False

    @property
    def read(self) -> frozenset[str] | None:
        """The names of the attributes that count; None stands for all."""
        return None if self.computes_names else self.names

    @property
    def holds_for_equals(self) -> bool:
        """Whether a trace of this code holds for every equal module: all but a module's address is described."""
        return self.installed and not self.roots and _OF_ADDRESSES.isdisjoint(self.own_names)

    @classmethod
    def of(cls, executed: Mapping[types.CodeType, str]) -> TracedCode:
        """The code that a trace has run, which comes with the names of its Python modules."""
        own = own_code(executed)
        of_readers = (code for code, module in executed.items() if module.partition(".")[0] in READERS and versioned(module))
        readers = not all(map(asks_for_class, of_readers))
        computes_names = readers or any(reads_unnamed(code) for code, module in executed.items() if not versioned(module))
        names, own_names = (frozenset().union(*map(names_in, codes)) for codes in (executed, own))
        own_names |= members_read_by(executed)
        installed = all(map(is_installed, own.values()))
        return cls(frozenset(own), names, computes_names, (), own_names, any(map(lists_attributes, own)), installed)


def own_code(executed: Mapping[types.CodeType, str]) -> dict[types.CodeType, str]:
    """The code objects, each with its Python module, that no version number of a package stands for."""
    return {code: name for code, name in executed.items() if not versioned(name) and name.partition(".")[0] != _OWN}


@functools.lru_cache(maxsize=16384)
def lists_attributes(code: types.CodeType) -> bool:
    """Whether a code object, or one defined in it, may go through the attributes of an object in their order."""
    if any(lists_attributes(constant) for constant in code.co_consts if isinstance(constant, types.CodeType)):
        return True
    loops = not _LOOPS.isdisjoint(code.co_names) or not _LOOP_OPERATIONS.isdisjoint(operations_of(code))
    return "vars" in code.co_names or ("__dict__" in code.co_names and loops)
