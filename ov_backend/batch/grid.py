"""The grid shorthand: lists in a row multiply."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from typing import Any


def grid_size(values: Mapping[str, Any]) -> int:
    """How many rows the lists in a row make of it; 0 if one of them is empty."""
    return math.prod(len(value) for value in values.values() if isinstance(value, list))


def expand(values: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Every combination of the values in a row's lists; the last list varies fastest."""
    choices = [value if isinstance(value, list) else [value] for value in values.values()]
    for combination in itertools.product(*choices):
        yield dict(zip(values, combination))
