"""One comparison, with PyTorch or of int8: the seconds of both sides, and both pictures where there are any."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
from PIL import Image

from ov_backend.ui.infotext import png


@dataclass(frozen=True)
class Measured:
    """What one side took.

    Attributes:
        step_seconds: of one step.
        picture_seconds: of the whole picture; None where only steps were timed.
        picture: the picture, or None.
    """

    step_seconds: float
    picture_seconds: float | None = None
    picture: Image.Image | None = None


def measured(ends: Sequence[float], seconds: float, picture: Image.Image | None) -> Measured:
    """A side that took so many seconds, whose steps ended at these seconds."""
    steps = [after - before for before, after in pairwise(ends)]
    return Measured(statistics.median(steps or [seconds]), seconds, picture)


#: Names of both sides by what is compared, in messages too.
WITH_PYTORCH = {"pytorch": "PyTorch", "openvino": "OpenVINO"}


@dataclass(frozen=True)
class Comparison:
    """Both sides; ``size`` is width and height in pixels, and ``sides`` are the names of the first and the second."""

    size: tuple[int, int]
    batch: int
    first: Measured
    second: Measured
    sides: Mapping[str, str] = field(default_factory=lambda: WITH_PYTORCH)

    def as_dict(self) -> dict[str, Any]:
        """A job's result: ``psnr_db`` is None where both pictures are equal; it is left out where there are none."""
        measured = dict(zip(self.sides, (self.first, self.second)))
        result: dict[str, Any] = {
            "size": f"{self.size[0]}x{self.size[1]}",
            "batch": self.batch,
            "sides": dict(self.sides),
            **{f"{name}_seconds": side.step_seconds for name, side in measured.items()},
            "pictures": self.first.picture is not None and self.second.picture is not None,
        }
        if self.first.picture is None or self.second.picture is None:
            return result
        ratio = psnr(self.first.picture, self.second.picture)
        return {
            **result,
            **{f"{name}_picture_seconds": side.picture_seconds for name, side in measured.items()},
            "psnr_db": round(ratio, 2) if math.isfinite(ratio) else None,
        }

    def pictures(self) -> dict[str, bytes]:
        """Both pictures as PNG, by the names of the sides; none where only steps were timed."""
        if self.first.picture is None or self.second.picture is None:
            return {}
        return dict(zip(self.sides, (png(self.first.picture), png(self.second.picture))))


def int8_sides(own: str) -> dict[str, str]:
    """The names of both sides where int8 is compared with a device's own precision, such as "bf16"."""
    return {"own": own, "int8": "int8"}


def psnr(a: Image.Image, b: Image.Image) -> float:
    """Peak signal-to-noise ratio of two pictures of one size in dB; infinite where they are equal."""
    first, second = (np.asarray(picture.convert("RGB"), dtype=np.float64) for picture in (a, b))
    error = float(((first - second) ** 2).mean())
    return math.inf if error == 0 else 10 * math.log10(255**2 / error)
