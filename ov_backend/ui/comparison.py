"""One comparison with PyTorch: the seconds of both, and both pictures where there are any."""

from __future__ import annotations

import io
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image


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


@dataclass(frozen=True)
class Comparison:
    """Both sides; ``size`` is width and height in pixels."""

    size: tuple[int, int]
    batch: int
    pytorch: Measured
    openvino: Measured

    def as_dict(self) -> dict[str, Any]:
        """A job's result: ``psnr_db`` is None where both pictures are equal; it is left out where there are none."""
        result: dict[str, Any] = {
            "size": f"{self.size[0]}x{self.size[1]}",
            "batch": self.batch,
            "pytorch_seconds": self.pytorch.step_seconds,
            "openvino_seconds": self.openvino.step_seconds,
            "pictures": self.pytorch.picture is not None and self.openvino.picture is not None,
        }
        if self.pytorch.picture is None or self.openvino.picture is None:
            return result
        ratio = psnr(self.pytorch.picture, self.openvino.picture)
        return {
            **result,
            "pytorch_picture_seconds": self.pytorch.picture_seconds,
            "openvino_picture_seconds": self.openvino.picture_seconds,
            "psnr_db": round(ratio, 2) if math.isfinite(ratio) else None,
        }

    def pictures(self) -> dict[str, bytes]:
        """Both pictures as PNG, by "pytorch" and "openvino"; none where only steps were timed."""
        if self.pytorch.picture is None or self.openvino.picture is None:
            return {}
        return {"pytorch": _png(self.pytorch.picture), "openvino": _png(self.openvino.picture)}


def psnr(a: Image.Image, b: Image.Image) -> float:
    """Peak signal-to-noise ratio of two pictures of one size in dB; infinite where they are equal."""
    first, second = (np.asarray(picture.convert("RGB"), dtype=np.float64) for picture in (a, b))
    error = float(((first - second) ** 2).mean())
    return math.inf if error == 0 else 10 * math.log10(255**2 / error)


def _png(picture: Image.Image) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, format="PNG")
    return buffer.getvalue()
