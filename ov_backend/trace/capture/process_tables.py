"""What a forward may set for the process or its thread, which a trace has to put back.

That is ``sys.modules``, the filters of warnings, how Python's decimal numbers and numpy's are computed, and autocast.
"""

from __future__ import annotations

import decimal
import sys
import types
import warnings
from typing import Any, cast

import numpy as np

from ov_backend.guards import autocast
from ov_backend.guards.describe import attribute_or_none

_ABSENT = object()


class ProcessTables:
    """The content of both tables before a trace. What an import adds to ``sys.modules`` stays, because Python imports once."""

    def __init__(self) -> None:
        self._modules: dict[str, Any] = dict(sys.modules)
        #: What another thread is importing. Python takes it out of the table if the import fails.
        self._begun = {name for name, module in self._modules.items() if _is_begun(module)}
        self._filters = cast("list[Any]", warnings.filters)  # typeshed shows a sequence
        self._rules = list(self._filters)
        self._classes = _module_classes()

    def put_back(self) -> bool:
        """Put back what no import has added or taken away; returns whether there was something.

        Filters that came with a new package stay, but count too.
        """
        now = dict(sys.modules)
        new = now.keys() - self._modules.keys()
        imported = {name for name in new if _is_import(name, now[name]) or self._replaces_itself(name, now[name])}
        packages = {name for name in imported if "." not in name}
        put = [name for name in now if now[name] is not self._modules.get(name, _ABSENT) and not _is_import(name, now[name])]
        put = [name for name in put if name.partition(".")[0] not in packages and name not in imported | self._begun]
        taken = [name for name in self._modules.keys() - now.keys() if name not in self._begun]
        for name in (*put, *taken):
            if name in self._modules:
                sys.modules[name] = self._modules[name]
            else:
                sys.modules.pop(name, None)
        has_rules = list(self._filters) != self._rules
        if has_rules and not packages:  # a package adds its filters once, when it is imported
            self._filters[:] = self._rules
            with warnings.catch_warnings():  # both ends of it tell the interpreter that the filters have changed
                pass
        return bool(put) or bool(taken) or has_rules

    def _replaces_itself(self, name: str, module: Any) -> bool:
        """Whether a module was imported and has put an object in its place, as some of torch's do.

        It has defined the object's class meanwhile. An object of an older class is the forward's doing.
        """
        cls = type(module)
        return issubclass(cls, types.ModuleType) and cls not in self._classes and attribute_or_none(cls, "__module__") == name


def _is_import(name: str, module: Any) -> bool:
    """Whether an import has put this module there."""
    spec = attribute_or_none(module, "__spec__") if isinstance(module, types.ModuleType) else None
    return attribute_or_none(spec, "name") == name


def _module_classes() -> set[type]:
    """All classes of Python modules that there are."""
    found: set[type] = set()
    waiting: list[type] = [types.ModuleType]
    while waiting:
        each = waiting.pop()
        if each not in found:
            found.add(each)
            waiting += type.__subclasses__(each)
    return found


def _is_begun(module: Any) -> bool:
    """Whether the import of this module has not ended."""
    spec = vars(module).get("__spec__") if isinstance(module, types.ModuleType) else None
    return getattr(spec, "_initializing", False) is True


#: What a context says of how decimal numbers are computed; what else it holds are notes of computations that are over.
_RULES = ("prec", "rounding", "Emin", "Emax", "capitals", "clamp", "traps")


class ArithmeticState:
    """The rules of this thread when this is made."""

    def __init__(self) -> None:
        self._context, self._errors = decimal.getcontext(), np.geterr()
        self._rules, self._autocast = _rules_of(self._context), (autocast.of_cpu(), autocast.state())

    def put_back(self) -> bool:
        """Put the rules back, apart from autocast's, which is that of the trace; whether any had changed."""
        same_context = decimal.getcontext() is self._context and _rules_of(self._context) == self._rules
        if same_context and np.geterr() == self._errors:
            return (autocast.of_cpu(), autocast.state()) != self._autocast
        decimal.setcontext(self._context)
        for name, value in self._rules.items():
            setattr(self._context, name, value)
        np.seterr(**self._errors)
        return True


def _rules_of(context: decimal.Context) -> dict[str, object]:
    return {name: dict(value) if name == "traps" else value for name in _RULES for value in [getattr(context, name)]}
