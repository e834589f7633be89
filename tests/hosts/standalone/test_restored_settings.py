"""The page's settings are read from the parameters of a picture that was made here or by the WebUI."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("gradio", minversion="5", reason="the standalone page needs current Gradio")

from PIL import Image, PngImagePlugin

from ov_backend.hosts.standalone import events
from ov_backend.ui.choices import Choices
from ov_backend.ui.infotext import Parameters


def test_a_sampler_that_is_not_here_is_left_as_it_is(tmp_path: Path) -> None:
    info = PngImagePlugin.PngInfo()
    info.add_text("parameters", "a cat\nSteps: 3, Sampler: Restart, CFG scale: 5, Seed: 1, Size: 64x64, OpenVINO: vae=off")
    Image.new("RGB", (8, 8)).save(tmp_path / "x.png", pnginfo=info)
    changes, message = events.restore(str(tmp_path / "x.png"), Parameters(sampler="Euler"))
    assert "value" not in changes["sampler"]
    assert "Restart" in message
    assert changes["more"]["open"] is changes["openvino"]["open"] is True


def test_an_upscaler_that_is_not_here_is_lanczos(tmp_path: Path) -> None:
    parameters = Parameters("a cat", sampler="Euler", strength=0.5, hires=2.0, upscaler="R-ESRGAN 4x+")
    info = PngImagePlugin.PngInfo()
    info.add_text("parameters", parameters.as_text("x", Choices()))
    Image.new("RGB", (8, 8)).save(tmp_path / "x.png", pnginfo=info)
    for here, expected in ((["Lanczos", "R-ESRGAN 4x+"], "R-ESRGAN 4x+"), (["Lanczos"], "Lanczos")):
        changes, message = events.restore(str(tmp_path / "x.png"), Parameters(), here)
        assert (changes["upscaler"], changes["hires"]) == (expected, 2.0)
        assert ("Its upscaler 'R-ESRGAN 4x+' is not here" in message) is (expected == "Lanczos")


def test_a_picture_clears_what_it_does_not_have(tmp_path: Path) -> None:
    info = PngImagePlugin.PngInfo()
    info.add_text("parameters", "a cat\nSteps: 3, Seed: 1, Size: 64x64")
    Image.new("RGB", (8, 8)).save(tmp_path / "x.png", pnginfo=info)
    initial = Parameters("not this", "nor this", 20, 4.0, -1, 256, 256, 1, None, "DPM++ 2M")
    changes, _ = events.restore(str(tmp_path / "x.png"), initial)
    expected = {"prompt": "a cat", "negative_prompt": "", "steps": 3, "guidance": 4.0, "seed": 1, "width": 64, "height": 64}
    cleared = {"batch": 1, "strength": events.STRENGTH, "sampler": "DPM++ 2M", "hires": 1.0, "upscaler": "Lanczos"}
    assert changes == {**expected, **cleared, "start": None, "count": 1}


def test_numbers_that_make_no_sense_are_those_of_the_start(tmp_path: Path) -> None:
    fields = {
        "steps": ("Steps", "9" * 24),
        "guidance": ("CFG scale", "nan"),
        "seed": ("Seed", str(1 << 70)),
        "width": ("Size", "0x0"),
        "height": ("Size", "64x99999999"),
        "batch": ("Batch size", "-1"),
        "strength": ("Denoising strength", "7"),
        "hires": ("Hires upscale", "inf"),
    }
    initial = Parameters(steps=9, guidance=4.0, seed=8, width=256, height=320, batch=2, hires=2.0, strength=0.5)
    for name, (field, value) in fields.items():
        info = PngImagePlugin.PngInfo()
        info.add_text("parameters", f"a cat\nModel: x, Version: y, Sampler: DPM++ 2M, {field}: {value}")
        Image.new("RGB", (8, 8)).save(tmp_path / "x.png", pnginfo=info)
        changes, message = events.restore(str(tmp_path / "x.png"), initial)
        assert changes[name] == getattr(initial, name), name
        assert "A number of it is out of bounds" in message


def test_a_low_strength_of_many_steps_is_read(tmp_path: Path) -> None:
    info = PngImagePlugin.PngInfo()
    info.add_text("parameters", "a cat\nSteps: 100, Size: 64x64, Denoising strength: 0.03")
    Image.new("RGB", (8, 8)).save(tmp_path / "x.png", pnginfo=info)
    changes, message = events.restore(str(tmp_path / "x.png"), Parameters())
    assert changes["strength"] == 0.03
    assert "out of bounds" not in message


def test_a_file_without_parameters_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "x.png").write_bytes(b"x")
    changes, message = events.restore(str(tmp_path / "x.png"), Parameters())
    assert changes == {}
    assert "no picture that carries parameters" in message


@pytest.mark.parametrize("is_packed,expected", [(False, "have 200000 characters"), (True, "no picture that carries parameters")])
def test_parameters_that_are_too_long_change_nothing(tmp_path: Path, is_packed: bool, expected: str) -> None:
    info = PngImagePlugin.PngInfo()
    info.add_text("parameters", "x" * (2 << 20 if is_packed else 200_000), is_packed)
    Image.new("RGB", (8, 8)).save(tmp_path / "x.png", pnginfo=info)
    changes, message = events.restore(str(tmp_path / "x.png"), Parameters())
    assert changes == {}
    assert expected in message
