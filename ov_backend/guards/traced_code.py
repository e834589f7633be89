"""The code that a trace has run: what a graph depends on is found by going through this code, and through no other."""

from __future__ import annotations

import operator
import sys
import types
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ov_backend.guards.describe import code_digest, versioned
from ov_backend.guards.orders import lists_attributes
from ov_backend.guards.reads import may_read_unnamed, members_read_by, names_functions, names_in, only_tested

#: This package runs in every trace; its version is in every key.
_OWN = __package__.partition(".")[0]
#: The most code objects, and the longest name, that are taken from a file.
_MAX_STORED = 4096
_MAX_NAME = 512
#: The attributes of :class:`TracedCode` that are true or false.
_FLAGS = ("computes_names", "lists_attributes", "names_functions")


@dataclass(frozen=True)
class TracedCode:
    """The code of one trace, apart from packages that are known by their version.

    Attributes:
        digests: of the code objects.
        names: every name that stands in the code.
        computes_names: whether it may read attributes by other names, too.
        roots: functions that ran although no attribute or global name leads to them from the module.
        own_names: the names in the code that has a digest, without those of PyTorch's and Python's own code.
        lists_attributes: whether it may go through the attributes of an object in their order.
        names_functions: whether it may ask for the name or the text of a function.
        tested: those of ``own_names`` that the code uses only as the right side of ``in``.
    """

    digests: frozenset[str]
    names: frozenset[str] = frozenset()
    computes_names: bool = False
    roots: tuple[types.FunctionType, ...] = ()
    own_names: frozenset[str] = frozenset()
    lists_attributes: bool = False
    names_functions: bool = False
    tested: frozenset[str] = frozenset()

    @property
    def read(self) -> frozenset[str] | None:
        """The names of the attributes that count; None stands for all."""
        return None if self.computes_names else self.names

    def as_json(self) -> dict[str, list[str] | bool] | None:
        """For a file; None where another process could not find a root by its name."""
        paths = [f"{function.__module__}:{function.__qualname__}" for function in self.roots]
        if any(_resolve(path) is not function for path, function in zip(paths, self.roots)):
            return None
        sets = {"digests": self.digests, "names": self.names, "own_names": self.own_names, "tested": self.tested}
        flags = {key: bool(getattr(self, key)) for key in _FLAGS}
        return {**{key: sorted(values) for key, values in sets.items()}, "roots": paths, **flags}

    @classmethod
    def from_json(cls, stored: Any) -> TracedCode | None:
        """From a file; None where it describes no code, or code that is not loaded here."""
        keys = ("digests", "names", "roots", "own_names", "tested")
        if not isinstance(stored, dict) or stored.keys() != {*keys, *_FLAGS}:
            return None
        digests, names, paths, own, tested = (stored[key] for key in keys)
        flags = {key: stored[key] for key in _FLAGS}
        if not (all(map(_is_list, (stored[key] for key in keys))) and all(isinstance(flag, bool) for flag in flags.values())):
            return None
        roots = tuple(function for path in paths if isinstance(function := _resolve(path), types.FunctionType))
        own_names, names_tested = frozenset(own), frozenset(tested)
        traced = cls(frozenset(digests), frozenset(names), roots=roots, own_names=own_names, tested=names_tested, **flags)
        return traced if len(roots) == len(paths) else None

    @classmethod
    def of(cls, executed: Mapping[types.CodeType, str]) -> TracedCode:
        """The code that a trace has run.

        Args:
            executed: code objects, each with the name of its Python module.
        """
        own = own_code(executed)
        computes_names = any(may_read_unnamed(code, module, versioned(module)) for code, module in executed.items())
        names, own_names = (frozenset().union(*map(names_in, codes)) for codes in (executed, own))
        own_names |= members_read_by(executed)
        flags = {"lists_attributes": any(map(lists_attributes, own)), "names_functions": any(map(names_functions, own))}
        return cls(frozenset(map(code_digest, own)), names, computes_names, (), own_names, tested=only_tested(own), **flags)


def own_code(executed: Mapping[types.CodeType, str]) -> dict[types.CodeType, str]:
    """The code objects, each with its Python module, that no version number of a package stands for."""
    return {code: name for code, name in executed.items() if not versioned(name) and name.partition(".")[0] != _OWN}


def _is_list(values: Any) -> bool:
    """Whether a value is a list of short texts."""
    return (
        isinstance(values, list)
        and len(values) <= _MAX_STORED
        and all(isinstance(text, str) and len(text) <= _MAX_NAME for text in values)
    )


def _resolve(name: str) -> Any:
    """What a name such as ``package.module:Class.function`` stands for among the loaded modules, or None."""
    module, _, path = name.partition(":")
    try:
        return operator.attrgetter(path)(sys.modules[module])
    except (KeyError, AttributeError):
        return None
