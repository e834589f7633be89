"""A seeded part of PyTorch's operator database; ``python -m tests.integration.operators.sweep`` runs all of it."""

from __future__ import annotations

import random

import pytest

from ov_backend import Settings
from ov_backend.core import devices
from tests.helpers.extent import some
from tests.integration.operators import sweep

#: Entries that once disagreed, and a part of all others.
ONCE_WRONG = ["clone|", "expand_copy|", "argmax|", "var|", "std|", "amax|", "erfinv|", "rot90|", "nn.functional.avg_pool2d|"]
ONCE_WRONG += ["nn.functional.interpolate|nearest", "nn.functional.interpolate|bilinear", "diagonal_scatter|", "repeat|"]
ALL = sweep.names()
CHOSEN = [name for name in ONCE_WRONG if name in ALL] + random.Random(0).sample(ALL, 24)

#: Entries of what loses digits in bfloat16.
BY_AUTOCAST = ["cumsum|", "cumprod|", "var|", "logsumexp|", "floor|", "remainder|", "exp2|", "log1p|", "expm1|", "prod|", "sin|"]
BY_AUTOCAST += ["sum|", "norm|", "diff|", "sort|", "argmax|", "logcumsumexp|", "fmod|", "frac|", "round|", "lerp|", "tan|"]
BY_AUTOCAST += ["nn.functional.max_pool1d|", "nn.functional.max_pool2d|", "nn.functional.avg_pool2d|"]
BY_AUTOCAST = [name for name in BY_AUTOCAST if name in ALL]


@pytest.mark.parametrize("name", some(CHOSEN[:-12], CHOSEN))
def test_operator(name: str) -> None:
    found = list(sweep.outcomes(name, 2))
    assert found
    wrong = [one for one in found if one.status == "disagreed"]
    assert not wrong, wrong


@pytest.mark.skipif(devices.resolved_precision(Settings(device="CPU")) != "bf16", reason="this CPU computes in f32")
@pytest.mark.parametrize("name", some(BY_AUTOCAST[:12], BY_AUTOCAST))
def test_operator_behind_a_product_in_the_default_precision(name: str) -> None:
    found = list(sweep.outcomes(name, 2, precision="auto"))
    assert found
    wrong = [one for one in found if one.status == "disagreed"]
    assert not wrong, wrong
