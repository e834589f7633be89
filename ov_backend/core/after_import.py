"""Runs a function right after a module is imported, without importing the module itself."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


def after_import(name: str, run: Callable[[], None]) -> None:
    """Call ``run`` once: at once if the module of this name is imported, else right after its first import."""
    if name in sys.modules:
        run()
    else:
        sys.meta_path.insert(0, _Finder(name, run))


class _Finder(MetaPathFinder):
    """Finds one module by the other finders, and leaves ``sys.meta_path`` once that module is imported."""

    def __init__(self, name: str, run: Callable[[], None]) -> None:
        self._name, self._run = name, run

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """The spec that another finder has for the module; its loader also calls ``run``."""
        if name != self._name:
            return None
        others = [finder for finder in sys.meta_path[sys.meta_path.index(self) + 1 :] if hasattr(finder, "find_spec")]
        spec = next((spec for finder in others if (spec := finder.find_spec(name, path, target))), None)
        if spec is not None and spec.loader is not None:
            self._extend(spec.loader)
        return spec

    def _extend(self, loader: Any) -> None:
        original = loader.exec_module

        def execute(module: ModuleType) -> None:
            vars(loader).pop("exec_module", None)  # that of its class is there again
            original(module)
            if self in sys.meta_path:
                sys.meta_path.remove(self)
                self._run()

        loader.exec_module = execute
