"""A comparison's result: seconds of both sides, both pictures, their PSNR."""

from __future__ import annotations

import io
import json

import pytest
from PIL import Image

from ov_backend.ui.comparison import Comparison, Measured, int8_sides, psnr

GREY, LIGHTER = Image.new("RGB", (4, 4), (100, 100, 100)), Image.new("RGB", (4, 4), (101, 101, 101))


def test_a_difference_of_one_step_in_every_pixel_is_48_db() -> None:
    assert psnr(GREY, LIGHTER) == pytest.approx(48.13, abs=0.01)


def test_pictures_come_with_their_seconds_and_psnr() -> None:
    comparison = Comparison((64, 32), 1, Measured(0.5, 3.0, GREY), Measured(0.25, 1.0, LIGHTER))
    result = comparison.as_dict()
    assert json.loads(json.dumps(result)) == result
    assert (result["size"], result["pytorch_seconds"], result["openvino_seconds"]) == ("64x32", 0.5, 0.25)
    assert (result["pytorch_picture_seconds"], result["openvino_picture_seconds"]) == (3.0, 1.0)
    assert (result["pictures"], result["psnr_db"]) == (True, 48.13)
    pictures = comparison.pictures()
    assert [Image.open(io.BytesIO(pictures[name])).getpixel((0, 0))[0] for name in ("pytorch", "openvino")] == [100, 101]


def test_equal_pictures_have_no_number_that_json_lacks() -> None:
    assert Comparison((4, 4), 1, Measured(1, 1, GREY), Measured(1, 1, GREY.copy())).as_dict()["psnr_db"] is None


def test_steps_alone_have_no_pictures() -> None:
    comparison = Comparison((64, 64), 2, Measured(1.0), Measured(2.0))
    assert comparison.pictures() == {}
    assert "psnr_db" not in comparison.as_dict()


def test_a_comparison_of_int8_names_its_sides() -> None:
    comparison = Comparison((64, 64), 1, Measured(0.5, 3.0, GREY), Measured(0.25, 1.0, LIGHTER), int8_sides("bf16"))
    result = comparison.as_dict()
    assert result["sides"] == {"own": "bf16", "int8": "int8"}
    assert (result["own_picture_seconds"], result["int8_picture_seconds"], result["psnr_db"]) == (3.0, 1.0, 48.13)
    assert list(comparison.pictures()) == ["own", "int8"]
