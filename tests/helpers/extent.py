"""How much of the suite runs.

``make test`` leaves out what has the marker ``slow``, ``make test-full`` runs that. The rows of long tables have the marker
``longest`` but for a sample, and run with ``ZOO=all`` only (``make test-longest``).
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

FULL = os.environ.get("ZOO") == "all"

#: Marks a long test whose parts, or whose like, are tested elsewhere.
only_in_full = pytest.mark.longest

#: Folders and files below ``tests/`` that are slow: they start whole programs or browsers, draw pictures with several pipelines,
#: or compile many networks. The seconds were measured with ``--durations``.
SLOW = ("integration", "test_wheel.py")
#: What is not slow in them: one test of each that shows whether it works at all.
SMOKE: tuple[str, ...] = ()


def is_slow(path: Path, name: str) -> bool:
    """Whether a test is left out by ``make test``.

    Args:
        path: of its file, below ``tests/``.
        name: of the test.
    """
    test = f"{path.as_posix()}::{name}"
    return any(test.startswith((f"{each}/", f"{each}:")) for each in SLOW) and not test.startswith(SMOKE)


def some(part: Iterable[Any], everything: Iterable[Any], several: bool = False) -> list[Any]:
    """The values of a test's parameter; those outside the part run in full only.

    Args:
        part: the values that always run.
        everything: all values.
        several: each value is a tuple of the values of several parameters.
    """
    chosen = list(part)
    values = [(value, *([] if value in chosen else [only_in_full])) for value in everything]
    return [pytest.param(*(value if several else [value]), marks=marks) for value, *marks in values]
