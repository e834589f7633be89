"""Thousands of pictures from a job file, made in this process or on Ray; an interrupted run goes on where it was.

The package can be called: ``ov_backend.batch(rows, out)`` is :func:`ov_backend.batch.api.batch`. A function of that name beside
the package would not do: importing the package would replace it.
"""

from __future__ import annotations

import inspect
import sys
from importlib import import_module
from types import ModuleType
from typing import Any

from ov_backend.core.errors import SettingsError, short_repr


class _CallablePackage(ModuleType):
    def __call__(self, rows: Any, out: Any, **options: Any) -> Any:
        known = [name for name in self.__signature__.parameters if name not in ("rows", "out")]
        unknown = min(set(options) - set(known), default=None)
        if unknown is not None:
            raise SettingsError(f"batch has no option {short_repr(unknown)}; known are {', '.join(known)}.")
        return import_module("ov_backend.batch.api").batch(rows, out, **options)

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(import_module("ov_backend.batch.api").batch)


package = sys.modules[__name__]
package.__class__ = _CallablePackage
