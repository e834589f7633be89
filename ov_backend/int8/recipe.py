"""A recipe: the ranges of the inputs of a network's layers, by which it can be computed in 8 bits. It holds no weights.

Layers are named by the paths of their weights, so one recipe serves every picture size and every LoRA mix of a checkpoint.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from ov_backend.model.transformations.quantize import MARGIN, Range

#: Version of a recipe's layout, of what its ranges mean, and of which layers have one: a recipe that lacks some is made again.
VERSION = 4
#: The largest relative error of one call with which int8 is used.
MAX_ERROR = 0.035

#: What int8 does to pictures, as docs/measurements.md has it: the error of a step tells little of that.
_PICTURES = "most pictures stay alike, a few become other ones"
_FILE = "recipe.json"
_MAX_TEXT, _MAX_LAYERS, _MAX_CALLS = 1000, 20_000, 1 << 30
_LARGEST = 3.4e38


@dataclass(frozen=True)
class Recipe:
    """How one network is computed in 8 bits.

    Attributes:
        network: class of the network, for those who look at the store.
        checkpoint: of the weights it was made with, see :func:`ov_backend.int8.identity.checkpoint_of`.
        calls: number of calls that it was made from.
        pictures: number of pictures that these belong to.
        error: relative error of a call's result, the root of the mean square over some of these calls.
        refused: why int8 is not used with it, or ""; no other process is told of that.
        ranges: of the layers' inputs, by layer.
    """

    network: str
    checkpoint: str
    calls: int
    pictures: int
    ranges: Mapping[str, Range]
    error: float = 0.0
    refused: str = ""

    def refuse(self, reason: str) -> Recipe:
        """The recipe as it is kept where it is not used, so that this process calibrates nothing again."""
        return replace(self, error=0.0, refused=reason[:_MAX_TEXT])

    def judge(self, errors: Sequence[float]) -> Recipe:
        """The recipe with its error, from those of some calls; refused if that is too large."""
        error = math.sqrt(sum(each * each for each in errors) / len(errors)) if errors else math.inf
        if not math.isfinite(error):
            return self.refuse("a call's result is not finite in 8 bits, or has nothing to compare it with")
        limit = f"more than {100 * MAX_ERROR:.1f} % from that in the device's own precision"
        refused = "" if error <= MAX_ERROR else f"a call's result is off by {100 * error:.1f} %, {limit}"
        return replace(self, error=error, refused=refused)

    def describe(self) -> str:
        """Its error, what int8 means for pictures, and what it has seen."""
        seen = f"{self.pictures} picture{'s' * (self.pictures > 1)} ({self.calls} steps)"
        error = f"a step's result is {100 * self.error:.1f} % off, with {len(self.ranges)} layers in 8 bits"
        return f"int8: {error}; {_PICTURES}; calibrated by {seen}"

    @functools.cached_property
    def digest(self) -> str:
        """Names the ranges; a part of the key of what is compiled."""
        return hashlib.sha256(json.dumps(_plain(self.ranges), sort_keys=True).encode()).hexdigest()[:32]

    def as_files(self) -> dict[str, bytes]:
        """For the store: JSON."""
        kept = {name: getattr(self, name) for name in ("network", "checkpoint", "calls", "pictures", "error")}
        content = {**kept, "version": VERSION, "ranges": _plain(self.ranges)}
        return {_FILE: json.dumps(content, sort_keys=True).encode()}

    @classmethod
    def from_files(cls, files: Mapping[str, bytes]) -> Recipe:
        """Read a recipe from the store.

        Raises:
            DAMAGE: it is no recipe, or a value in it makes no sense.
        """
        return _checked(json.loads(files[_FILE]))


def relative_error(actual: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]) -> float:
    """The norm of the difference of a call's results, by the norm of the expected ones."""
    pairs = [(a.double(), e.double()) for a, e in zip(actual, expected) if e.is_floating_point()]
    difference = math.sqrt(sum(float((a - e).square().sum()) for a, e in pairs))
    size = math.sqrt(sum(float(e.square().sum()) for _, e in pairs))
    return difference / size if size else (math.inf if difference else 0.0)


def _plain(ranges: Mapping[str, Range]) -> dict[str, list[float]]:
    return {name: [given.low, given.high] for name, given in ranges.items()}


def _checked(content: Mapping[str, Any]) -> Recipe:
    if content["version"] != VERSION:
        raise ValueError("another version of this package wrote it")
    network, checkpoint = content["network"], content["checkpoint"]
    if not all(isinstance(text, str) and len(text) <= _MAX_TEXT for text in (network, checkpoint)):
        raise ValueError("a text in it is of another type, or too long")
    calls, pictures, error = content["calls"], content["pictures"], content["error"]
    if not all(isinstance(count, int) and not isinstance(count, bool) and 0 < count <= _MAX_CALLS for count in (calls, pictures)):
        raise ValueError("its number of calls or of pictures makes no sense")
    if not _is_number(error) or not 0 <= error <= MAX_ERROR:
        raise ValueError("its error makes no sense, or is too large")
    ranges = content["ranges"]
    if not isinstance(ranges, dict) or not 0 < len(ranges) <= _MAX_LAYERS:
        raise ValueError("its ranges are of another type, none or too many")
    known = {name: _range(name, *ranges[name]) for name in ranges}
    return Recipe(network, checkpoint, calls, pictures, known, float(error))


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
