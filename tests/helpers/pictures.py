"""Pictures of files, to be compared."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image


def pixels(path: Path) -> np.ndarray:
    """[height, width, 3], whole numbers of 0 to 255 that can be subtracted."""
    with Image.open(path) as picture:
        return np.asarray(picture.convert("RGB"), dtype=int)
