"""A recipe: the ranges of the inputs of a network's layers, by which it can be computed in 8 bits. It holds no weights.

Layers are named by the paths of their weights, so one recipe serves every picture size and every LoRA mix of a checkpoint.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ov_backend.transformations.low_precision import MARGIN, Range

#: Version of a recipe's layout, of what its ranges mean, and of which layers have one: a recipe that lacks some is made again.
VERSION = 2
#: The largest relative error of one call with which int8 is used.
MAX_ERROR = 0.03

_FILE = "recipe.json"
_MAX_TEXT, _MAX_LAYERS, _MAX_CALLS = 1000, 20_000, 1 << 30
_LARGEST = 3.4e38


@dataclass(frozen=True)
class Recipe:
    """How one network is computed in 8 bits.

    Attributes:
        network: class of the network, for those who look at the store.
        checkpoint: of the weights it was made with, see :func:`ov_backend.quantization.identity.checkpoint_of`.
        calls: number of calls that it was made from.
        error: relative error of a call's result, the root of the mean square over some of these calls.
        refused: why int8 is not used with it, or "".
        ranges: of the layers' inputs, by layer.
    """

    network: str
    checkpoint: str
    calls: int
    error: float
    refused: str
    ranges: Mapping[str, Range]

    @functools.cached_property
    def digest(self) -> str:
        """Names the ranges; a part of the key of what is compiled."""
        return hashlib.sha256(json.dumps(_plain(self.ranges), sort_keys=True).encode()).hexdigest()[:32]

    def as_files(self) -> dict[str, bytes]:
        """For the store: JSON."""
        content = {**vars(self), "version": VERSION, "ranges": _plain(self.ranges)}
        content.pop("digest", None)
        return {_FILE: json.dumps(content, sort_keys=True).encode()}

    @classmethod
    def from_files(cls, files: Mapping[str, bytes]) -> Recipe:
        """Read a recipe from the store.

        Raises:
            ValueError: it is no recipe, or a value in it makes no sense.
        """
        try:
            content = json.loads(files[_FILE])
        except (LookupError, ValueError, RecursionError) as error:
            raise ValueError(f"it is no recipe ({type(error).__name__}: {error})") from error
        try:
            return _checked(content)
        except (LookupError, TypeError, AttributeError, OverflowError) as error:
            raise ValueError(f"it is no recipe ({type(error).__name__}: {error})") from error


def _plain(ranges: Mapping[str, Range]) -> dict[str, list[float]]:
    return {name: [given.low, given.high] for name, given in ranges.items()}


def _checked(content: Mapping[str, Any]) -> Recipe:
    if content["version"] != VERSION:
        raise ValueError("another version of this package wrote it")
    network, checkpoint, refused = (content[name] for name in ("network", "checkpoint", "refused"))
    if not all(isinstance(text, str) and len(text) <= _MAX_TEXT for text in (network, checkpoint, refused)):
        raise ValueError("a text in it is of another type, or too long")
    calls, error = content["calls"], content["error"]
    if not isinstance(calls, int) or isinstance(calls, bool) or not 0 < calls <= _MAX_CALLS:
        raise ValueError("its number of calls makes no sense")
    if not _is_number(error) or error < 0 or (error > MAX_ERROR and not refused):
        raise ValueError("its error makes no sense, or is too large")
    ranges = content["ranges"]
    if not isinstance(ranges, dict) or len(ranges) > _MAX_LAYERS:
        raise ValueError("its ranges are of another type, or too many")
    if not ranges and not refused:
        raise ValueError("it has no ranges")
    return Recipe(network, checkpoint, calls, float(error), refused, {name: _range(name, *ranges[name]) for name in ranges})


def _range(name: str, low: object, high: object) -> Range:
    if len(name) > _MAX_TEXT or not (_is_number(low) and _is_number(high)) or not low <= high:  # type: ignore[operator]
        raise ValueError("a range in it makes no sense")
    given = Range(float(low), float(high))  # type: ignore[arg-type]
    if MARGIN * (max(given.high, 0.0) - min(given.low, 0.0)) >= _LARGEST:
        raise ValueError("a range in it is too wide")
    return given


def _is_number(value: object) -> bool:
    """Whether a value is a number that float32 has."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value) and abs(value) < _LARGEST
