"""The demo, from a checkpoint file to a sheet of two pictures and their difference."""

from __future__ import annotations

import dataclasses
import json
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import IO

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("diffusers")

from ov_backend.checkpoint import load_pipeline
from ov_backend.cli import main as cli
from ov_backend.core.errors import SettingsError
from ov_backend.core.package_files import TRAINED
from ov_backend.core.settings import Settings
from ov_backend.hosts.standalone import demo
from ov_backend.hosts.standalone.checkpoint_files import checkpoint_file
from ov_backend.hosts.standalone.pipeline_call import call_pipeline
from ov_backend.hosts.standalone.pipeline_host import PictureRequest, PipelineHost
from ov_backend.pipelines.sizes import size_hint
from ov_backend.ui.choices import Choices
from ov_backend.ui.infotext import Parameters
from ov_backend.ui.jobs import JobControl, compare
from ov_backend.ui.snapshot import Job
from tests.helpers.diffusers_pipelines import tiny
from tests.hosts.standalone.checkpoints import write_small_checkpoint


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_small_checkpoint(tmp_path_factory.mktemp("checkpoint"))


def pictures_of(sheet: Path, width: int, height: int) -> list[np.ndarray]:
    """PyTorch's picture, OpenVINO's, and their difference."""
    image = np.asarray(Image.open(sheet).convert("RGB")).astype(int)
    bar, gap = demo._BAR, demo._GAP
    column = (image.shape[1] - 4 * gap) // 3
    return [image[bar : bar + height, gap + i * (column + gap) :][:, :width] for i in range(3)]


def test_checkpoint_file_becomes_the_same_picture_twice(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    out = tmp_path / "sheet.png"
    arguments = ["demo", "--checkpoint", str(checkpoint), "--steps", "3", "--size", "96x64", "--precision", "f32"]
    arguments += ["--out", str(out), "--cache-dir", str(tmp_path / "graphs")]
    assert cli.main([*arguments, "--json"]) == 0
    printed = capsys.readouterr()
    result = json.loads(printed.out)
    assert "Timing OpenVINO, step 3 of 3" in printed.err, "progress goes to stderr"
    assert result["difference"]["largest"] <= 2
    assert result["fallbacks"] == {}
    assert result["size"] == [96, 64]
    assert result["precision"] == "f32"
    networks = {name: values for name, values in result["networks"].items() if values["calls"]}
    assert networks.keys() == {"unet", "vae_decode", "text_encoder"}
    assert all((values["captures"], values["compiles"]) == (1, 1) for values in networks.values())
    assert min(*result["pytorch"].values(), *result["openvino"].values(), result["prepared"]["capture"]) > 0
    left, right, difference = pictures_of(out, 96, 64)
    assert left.std() > 20, "a flat picture would prove nothing"
    assert "made for 256x256; at 96x64" in caplog.text
    assert np.abs(left - right).max() == result["difference"]["largest"]
    mean_square = np.square(left - right).mean()
    assert result["difference"]["psnr_db"] == (pytest.approx(10 * np.log10(255**2 / mean_square)) if mean_square else None)
    np.testing.assert_array_equal(difference, np.abs(left - right) * demo.gain(result["difference"]["largest"]))

    assert cli.main(arguments) == 0  # once more, as text, with the graphs from disk
    text = capsys.readouterr().out
    stages = ("reading", "tracing", "converting", "compiling")
    for words in ("a step", "picture", *stages, "largest", "Fallbacks    none", "3 graphs found on disk"):
        assert words in text


@pytest.mark.parametrize("kind", ["sd1", "sdxl"])
@pytest.mark.parametrize("prompt", ["a cat", "a (cat:1.0)"])
def test_the_picture_is_that_of_the_other_commands(
    kind: str, prompt: str, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe = tiny(kind, shallow=True)
    monkeypatch.setattr(demo, "load_pipeline", lambda path: pipe)
    chosen = Parameters("a cat", steps=2, width=64, height=64, seed=4, guidance=4.0, sampler="DPM++ 2M")
    (expected,) = call_pipeline(pipe, pipe.scheduler, chosen, None)
    out, own = tmp_path / "x.png", Settings(precision="f32", cache_dir=str(tmp_path / "graphs"))
    demo.run(checkpoint, dataclasses.replace(chosen, prompt=prompt), (), out, own)
    np.testing.assert_array_equal(pictures_of(out, 64, 64)[0], np.asarray(expected))


def test_other_programs_are_named_where_they_use_the_processor() -> None:
    assert demo.other_programs(0.3, 2.2, 2) == ""
    expected = "Other programs use the processor (load 3.1, processors 2), so these seconds say little"
    assert demo.other_programs(3.1, 2.0, 2).startswith(expected)
    assert "(load 4.0, processors 1)" in demo.other_programs(0.0, 5.0, 1)


@pytest.mark.parametrize("given,expected", [([], 4.0), (["--guidance", "2.5"], 2.5)])
def test_the_guidance_suits_the_checkpoint_unless_it_is_given(
    checkpoint: Path, tmp_path: Path, given: list[str], expected: float, capsys: pytest.CaptureFixture[str]
) -> None:
    known = checkpoint.rename(tmp_path / "fluent-sd.safetensors")
    arguments = ["demo", "a boat", "--steps", "1", "--size", "64", "--checkpoint", str(known), *given, "--precision", "f32"]
    try:
        assert cli.main([*arguments, "--out", str(tmp_path / "x.png"), "--cache-dir", str(tmp_path), "--json"]) == 0
    finally:
        known.rename(checkpoint)
    assert json.loads(capsys.readouterr().out)["guidance"] == expected


def test_the_checkpoint_s_own_size_gives_no_hint(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint, out = write_small_checkpoint(tmp_path, vae_levels=2), tmp_path / "x.png"
    arguments = ["demo", "a boat", "--steps", "1", "--sampler", "euler", "--checkpoint", str(checkpoint), "--precision", "f32"]
    assert cli.main([*arguments, "--out", str(out), "--cache-dir", str(tmp_path), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["size"] == [64, 64]
    assert result["networks"]["unet"]["calls"] == 2  # the warm-up and one step
    assert "made for" not in caplog.text


@pytest.mark.parametrize(
    "width,height,far",
    [(256, 256, False), (320, 256, False), (192, 192, False), (512, 512, True), (512, 128, True), (128, 64, True)],
)
def test_which_sizes_are_far_from_the_checkpoint_s_own(width: int, height: int, far: bool) -> None:
    pipe = SimpleNamespace(unet=SimpleNamespace(config=SimpleNamespace(sample_size=32)), vae_scale_factor=8)
    assert bool(size_hint(pipe, width, height)) is far


def test_every_sampler_agrees_with_pytorch_in_a_single_step(checkpoint: Path, tmp_path: Path) -> None:
    own = Settings(precision="f32", cache_dir=str(tmp_path), fallback="raise")
    host, control = PipelineHost(load_pipeline(checkpoint), settings=own), JobControl(Job("compare"), threading.Event())
    for sampler in ("DPM++ 2M", "Euler", "Euler a", "DDIM", "UniPC"):
        request = PictureRequest(Parameters("a boat", steps=1, width=64, height=64, seed=0, sampler=sampler))
        compared = compare(host, control, request, Choices(precision="f32"))
        by_pytorch, by_openvino = (np.asarray(side.picture).astype(int) for side in (compared.first, compared.second))
        assert np.abs(by_openvino - by_pytorch).max() <= 2, sampler
        assert by_pytorch.std() > 20, "a flat picture would prove nothing"


def test_the_default_checkpoint_is_the_project_s_own(monkeypatch: pytest.MonkeyPatch) -> None:
    assert checkpoint_file(None) == TRAINED
    assert checkpoint_file(Path("own")) == Path("own")
    monkeypatch.setattr("ov_backend.hosts.standalone.checkpoint_files.TRAINED", Path("none.safetensors"))
    with pytest.raises(SettingsError, match="No checkpoint is given, and the project's own is not installed here; give --check"):
        checkpoint_file(None)


def test_the_gain_is_as_large_as_the_difference_allows() -> None:
    assert [demo.gain(largest) for largest in (0, 1, 2, 4, 100, 255)] == [64, 64, 64, 32, 2, 1]


def test_a_full_disk_leaves_the_picture_of_the_same_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    picture, out = Image.new("RGB", (64, 64), (9, 9, 9)), tmp_path / "out.png"
    out.write_bytes(b"an older picture")

    def full(self: Image.Image, file: IO[bytes], **_: object) -> None:
        file.write(b"half")
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Image.Image, "save", full)
        with pytest.raises(SettingsError, match="No space left on device"):
            demo._write(picture, out)
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("out.png", b"an older picture")]
    demo._write(picture, out)
    assert Image.open(out).size == (64, 64)


def test_a_link_leads_to_the_picture_and_one_to_itself_is_replaced(tmp_path: Path) -> None:
    picture, target, link, circle = Image.new("RGB", (64, 64)), *(tmp_path / f"{name}.png" for name in ("out", "link", "circle"))
    try:
        link.symlink_to(target.name)
        circle.symlink_to(circle.name)
    except OSError:
        pytest.skip("this user may make no links")
    for out in (link, circle):
        demo._write(picture, out)
        assert Image.open(out).size == (64, 64)
    assert (link.is_symlink(), target.is_symlink(), circle.is_symlink()) == (True, False, False)
