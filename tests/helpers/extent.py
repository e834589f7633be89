"""How much of the suite runs: everything with ``make test-full``, and a part of the longest tests otherwise.

A test with the marker ``full`` is left out unless ``ZOO=all`` (tests/conftest.py). Each has a short sample that always runs.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import pytest

FULL = os.environ.get("ZOO") == "all"

#: Marks a long test whose parts, or whose like, are tested elsewhere.
only_in_full = pytest.mark.full


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
