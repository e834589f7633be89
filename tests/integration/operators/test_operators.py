"""A seeded part of PyTorch's operator database; ``python -m tests.integration.operators.sweep`` runs all of it."""

from __future__ import annotations

import random

import pytest

from tests.helpers.extent import some
from tests.integration.operators import sweep

#: Entries that once disagreed, and a part of all others.
ONCE_WRONG = ["clone|", "expand_copy|", "argmax|", "var|", "std|", "amax|", "erfinv|", "rot90|", "nn.functional.avg_pool2d|"]
ONCE_WRONG += ["nn.functional.interpolate|nearest", "nn.functional.interpolate|bilinear", "diagonal_scatter|", "repeat|"]
ALL = sweep.names()
CHOSEN = [name for name in ONCE_WRONG if name in ALL] + random.Random(0).sample(ALL, 24)


@pytest.mark.parametrize("name", some(CHOSEN[:-12], CHOSEN))
def test_operator(name: str) -> None:
    found = list(sweep.outcomes(name, 2))
    assert found
    wrong = [one for one in found if one.status == "disagreed"]
    assert not wrong, wrong
