"""Files of generated pictures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from ov_backend.hosts.standalone.generated import write_pictures


class _DiskIsFull(Image.Image):
    def save(self, file: Any, **options: Any) -> None:
        file.write(b"\x89PNG")
        raise OSError(28, "No space left on device")


def test_a_picture_is_there_whole_or_not_at_all(tmp_path: Path) -> None:
    whole = Image.new("RGB", (8, 8))
    with pytest.raises(OSError, match="No space left"):
        write_pictures(tmp_path, [whole, _DiskIsFull()], ["Steps: 1"] * 2, 5)
    (file,) = tmp_path.iterdir()
    with Image.open(file) as picture:
        assert picture.info["parameters"] == "Steps: 1"
