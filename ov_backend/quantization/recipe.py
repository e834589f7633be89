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

import numpy as np

from ov_backend.transformations.low_precision import Range

#: Version of a recipe's layout, and of what its ranges mean.
VERSION = 1
#: The largest relative error of one call with which int8 is used.
MAX_ERROR = 0.03

_HEADER, _NUMBERS = "recipe.json", "ranges.bin"
_MAX_TEXT, _MAX_LAYERS, _MAX_CHANNELS = 1000, 20_000, 1 << 20


@dataclass(frozen=True)
class Recipe:
    """How one network is computed in 8 bits.

    Attributes:
        network: class of the network, for those who look at the store.
        checkpoint: of the weights it was made with, see :func:`ov_backend.quantization.identity.checkpoint_of`.
        calls: number of calls that it was made from.
        error: relative error of a call's result, the root of the mean square over some of these calls.
        refused: why it is not used, or "".
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
        content = hashlib.sha256()
        for name, given in sorted(self.ranges.items()):
            content.update(f"{name}\n{given.low.size}\n".encode() + given.low.tobytes() + given.high.tobytes())
        return content.hexdigest()[:32]

    def as_files(self) -> dict[str, bytes]:
        """For the store: a header in JSON, and the ranges as little-endian float32."""
        groups = _same_ranges(self.ranges)
        header = {
            "version": VERSION,
            "network": self.network,
            "checkpoint": self.checkpoint,
            "calls": self.calls,
            "error": self.error,
            "refused": self.refused,
            "layers": [[names, self.ranges[names[0]].low.size] for names in groups],
        }
        numbers = [np.concatenate([self.ranges[names[0]].low, self.ranges[names[0]].high]) for names in groups]
        data = np.concatenate(numbers).astype("<f4").tobytes() if numbers else b""
        return {_HEADER: json.dumps(header, sort_keys=True).encode(), _NUMBERS: data}

    @classmethod
    def from_files(cls, files: Mapping[str, bytes]) -> Recipe:
        """Read a recipe from the store.

        Raises:
            ValueError: it is no recipe, or a value in it makes no sense.
        """
        try:
            header = json.loads(files[_HEADER])
            numbers = np.frombuffer(files[_NUMBERS], dtype="<f4")
            return _checked(header, numbers)
        except (LookupError, TypeError, AttributeError, RecursionError) as error:
            raise ValueError(f"it is no recipe ({type(error).__name__}: {error})") from error


def _same_ranges(ranges: Mapping[str, Range]) -> list[list[str]]:
    """The layers; those that share one range, because they read the same activation, together."""
    groups: dict[tuple[bytes, bytes], list[str]] = {}
    for name, given in ranges.items():
        groups.setdefault((given.low.tobytes(), given.high.tobytes()), []).append(name)
    return list(groups.values())


def _checked(header: Mapping[str, Any], numbers: np.ndarray) -> Recipe:
    if header["version"] != VERSION:
        raise ValueError("another version of this package wrote it")
    texts = [header[name] for name in ("network", "checkpoint", "refused")]
    if not all(isinstance(text, str) and len(text) <= _MAX_TEXT for text in texts):
        raise ValueError("its texts are none")
    calls, error = header["calls"], header["error"]
    if not _is_count(calls, 1 << 30) or isinstance(error, bool) or not isinstance(error, (int, float)):
        raise ValueError("its numbers are none")
    if not (math.isfinite(error) and error >= 0) or (error > MAX_ERROR and not header["refused"]):
        raise ValueError(f"its error is {error}")
    return Recipe(texts[0], texts[1], calls, float(error), texts[2], _ranges(header["layers"], numbers))


def _ranges(layers: Any, numbers: np.ndarray) -> dict[str, Range]:
    ranges: dict[str, Range] = {}
    position = 0
    if not isinstance(layers, list) or len(layers) > _MAX_LAYERS:
        raise ValueError("its layers are no list")
    for names, channels in layers:
        if not _is_count(channels, _MAX_CHANNELS) or position + 2 * channels > numbers.size:
            raise ValueError("its ranges are cut off")
        low, high = numbers[position : position + channels], numbers[position + channels : position + 2 * channels]
        position += 2 * channels
        if not (np.isfinite(low).all() and np.isfinite(high).all() and (low <= high).all()):
            raise ValueError("a range in it is none")
        for name in names:
            if not isinstance(name, str) or len(name) > _MAX_TEXT or name in ranges:
                raise ValueError("a layer's name in it is none")
            ranges[name] = Range(low.astype(np.float32), high.astype(np.float32))
    if position != numbers.size:
        raise ValueError("it holds more numbers than its layers need")
    return ranges


def _is_count(value: object, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value <= most
