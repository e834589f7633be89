"""Arguments are exchanged by name, and stay where the caller gave them."""

from __future__ import annotations

from typing import Any

from ov_backend.core.signatures import Exchange


def forward(x: Any, timestep: Any, scale: Any = 1, *rest: Any, last: Any = None) -> None:
    """Of no matter but for its parameters."""


def test_an_argument_is_exchanged_where_it_was_given() -> None:
    exchanged = Exchange(forward, ["timestep", "scale", "last", "no parameter"])

    def named(name: str, value: Any) -> Any:
        return name, value

    assert exchanged(named, (1, 2), {}) == ((1, ("timestep", 2)), {})
    assert exchanged(named, (1,), {"timestep": 2, "last": 3}) == ((1,), {"timestep": ("timestep", 2), "last": ("last", 3)})
    assert exchanged(named, (1, 2, 3, 4), {"last": 5}) == ((1, ("timestep", 2), ("scale", 3), 4), {"last": ("last", 5)})
    assert exchanged(named, (1,), {"x": 1, "other": 2}) == ((1,), {"x": 1, "other": 2}), "the forward says what does not fit"


def by_position(timestep: Any, /, *scale: Any, **last: Any) -> None:
    """One parameter by position alone, and the names of the others stand for many values."""


def test_only_what_a_parameter_takes_is_exchanged() -> None:
    exchanged = Exchange(by_position, ["timestep", "scale", "last"])
    given = exchanged(lambda name, value: -value, (1, 2, 3), {"timestep": 4, "last": 5})
    assert given == ((-1, 2, 3), {"timestep": 4, "last": 5})
