"""Values that lie very deep in each other are followed like others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ov_backend import Settings
from tests.helpers.readers import Object, Scaled, assert_followed

DEPTH = 400


def innermost(value: Any) -> float:
    while isinstance(value.scale, Object):
        value = value.scale
    return float(value.scale)


def test_a_deep_value_is_followed(strict: Callable[..., Settings]) -> None:
    deepest = outer = Object(2.0)
    for _ in range(DEPTH):
        outer = Object(outer)  # type: ignore[arg-type]
    module = Scaled(lambda m: innermost(m.o), o=outer)
    assert_followed(strict, module, lambda m: setattr(deepest, "scale", 3.0))
