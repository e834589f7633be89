"""Whether the ranges of one checkpoint serve another: its values are neither cut off much nor rounded to few steps."""

from __future__ import annotations

from collections.abc import Mapping

from ov_backend.transformations.low_precision import MARGIN, Range

#: How many times as wide as a range of the recipe, with its margin, what was observed may be: layers that are off, and far off.
_CLIPPED, _MOST_CLIPPED = 1.2, 2.1
#: How many times as wide as what was observed a range of the recipe may be: layers that are off, and far off.
_COARSE, _MOST_COARSE = 3.0, 7.2
#: One layer of so many may be off; none may be far off.
_LAYERS = 20


def fits(ranges: Mapping[str, Range], observed: Mapping[str, Range]) -> bool:
    """Whether calls with these observed ranges can be computed in 8 bits with the ranges of a recipe.

    The limits hold a step of the demo checkpoint's UNet to 3.5 % where every layer is at its limit (docs/int8.md). Layers that
    either side does not know count for nothing.
    """
    off = 0
    layers = [name for name in ranges if name in observed]
    for name in layers:
        given, seen = _interval(ranges[name], MARGIN), _interval(observed[name])
        clipped = _quotient(_width(given.joined(seen)), _width(given))
        coarse = _quotient(_width(given), _width(seen)) if _width(seen) else 1.0  # 0 is exact in any range
        if clipped > _MOST_CLIPPED or coarse > _MOST_COARSE:
            return False
        off += clipped > _CLIPPED or coarse > _COARSE
    return off * _LAYERS <= len(layers)


def _interval(given: Range, margin: float = 1.0) -> Range:
    """The range with zero in it, as a layer in 8 bits has it."""
    return Range(margin * min(given.low, 0.0), margin * max(given.high, 0.0))


def _width(given: Range) -> float:
    return given.high - given.low


def _quotient(a: float, b: float) -> float:
    """``a / b``, and 1 where both are 0."""
    return a / b if b else (float("inf") if a else 1.0)
