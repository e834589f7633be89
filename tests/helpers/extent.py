"""How much of the suite runs: everything with ``make test-full``, and a part of the longest tests otherwise."""

from __future__ import annotations

import os
from collections.abc import Iterable

import pytest

FULL = os.environ.get("ZOO") == "all"


def some(part: Iterable[str], everything: Iterable[str]) -> list[str]:
    """The values of a test's parameter that run now."""
    return list(everything if FULL else part)


#: Marks a long test whose parts are tested one by one elsewhere.
only_in_full = pytest.mark.skipif(not FULL, reason="a long test, run by make test-full")
