"""Thousands of pictures from a job file, made in this process or on Ray; an interrupted run goes on where it was.

The package can be called: ``ov_backend.batch(rows, out)`` is :func:`ov_backend.batch.api.batch`. A function of that name beside
the package would not do: importing the package would replace it.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import Any


class _CallablePackage(ModuleType):
    def __call__(self, rows: Any, out: Any, **options: Any) -> Any:
        return import_module("ov_backend.batch.api").batch(rows, out, **options)


package = sys.modules[__name__]
package.__class__ = _CallablePackage
