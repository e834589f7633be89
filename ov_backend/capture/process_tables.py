"""What a forward may put into ``sys.modules`` and the filters of warnings, which a trace has to put back."""

from __future__ import annotations

import sys
import types
import warnings
from typing import Any

_ABSENT = object()


class ProcessTables:
    """Both tables when this is made. What an import puts there stays: it happens once, whoever imports."""

    def __init__(self) -> None:
        self._modules: dict[str, Any] = dict(sys.modules)
        self._filters = warnings.filters
        self._rules = list(self._filters)

    def put_back(self) -> bool:
        """Put back what no import has put there; whether something was put there, be it by an import that adds filters."""
        now = dict(sys.modules)
        packages = {name for name in now.keys() - self._modules.keys() if "." not in name and _is_import(name, now[name])}
        put = [name for name in now if now[name] is not self._modules.get(name, _ABSENT) and not _is_import(name, now[name])]
        put = [name for name in put if name.partition(".")[0] not in packages]
        taken = self._modules.keys() - now.keys()
        for name in (*put, *taken):
            if name in self._modules:
                sys.modules[name] = self._modules[name]
            else:
                sys.modules.pop(name, None)
        has_rules = list(self._filters) != self._rules
        if has_rules and not packages:  # a package adds its filters once, when it is imported
            self._filters[:] = self._rules  # type: ignore[index]  # a list, which typeshed shows as a sequence
            with warnings.catch_warnings():  # both ends of it tell the interpreter that the filters have changed
                pass
        return bool(put) or bool(taken) or has_rules


def _is_import(name: str, module: Any) -> bool:
    """Whether an import has put this there, or is about to."""
    spec = getattr(module, "__spec__", None) if isinstance(module, types.ModuleType) else None
    return spec is not None and spec.name == name
