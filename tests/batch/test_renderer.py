"""Pictures by real networks, small ones: the same as by themselves, with few compiles, and with LoRAs."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

pytest.importorskip("diffusers")

from ov_backend.batch.executor import execute
from ov_backend.batch.renderer import PipelineRenderer, _opened
from ov_backend.batch.row import Row
from ov_backend.checkpoint import load_pipeline
from ov_backend.core import devices
from ov_backend.core.errors import CheckpointError, DeviceError
from ov_backend.core.settings import Settings
from ov_backend.engine import network
from ov_backend.engine.ahead.history import History, kind_of
from ov_backend.store.store import open_store
from ov_backend.ui.choices import Choices
from ov_backend.ui.infotext import Parameters
from ov_backend.ui.likely import likely

SMALL = Parameters("a cat", steps=2, width=64, height=64, seed=4, sampler="DPM++ 2M")


@pytest.fixture(scope="module")
def renderer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PipelineRenderer]:
    renderer = PipelineRenderer(Settings(precision="f32", cache_dir=str(tmp_path_factory.mktemp("graphs")), fallback="raise"))
    yield renderer
    renderer.close()


@pytest.fixture(scope="module")
def lora(tmp_path_factory: pytest.TempPathFactory) -> Path:
    name = "lora_unet_down_blocks_0_attentions_0_transformer_blocks_0_attn2_to_v"
    generator = torch.Generator().manual_seed(0)
    path = tmp_path_factory.mktemp("lora") / "style.safetensors"
    down, up = torch.randn(2, 64, generator=generator), torch.randn(32, 2, generator=generator)
    save_file({f"{name}.lora_down.weight": down, f"{name}.lora_up.weight": up}, path)
    return path


def pixels(image: Image.Image) -> np.ndarray:
    return np.asarray(image.convert("RGB"), dtype=int)


def test_a_batch_is_its_pictures_by_themselves_and_pytorch_s(renderer: PipelineRenderer, checkpoint: Path) -> None:
    rendered = renderer.render(Row(1, 1, replace(SMALL, batch=2), checkpoint, "f32"))
    assert rendered.answered == "OpenVINO"
    assert rendered.prepared_seconds > 0
    single = renderer.render(Row(2, 2, replace(SMALL, seed=5), checkpoint, "f32")).images[0]
    assert np.abs(pixels(rendered.images[1]) - pixels(single)).max() <= 2
    pipe = load_pipeline(checkpoint)
    pipe.set_progress_bar_config(disable=True)
    from ov_backend.hosts.standalone.samplers import make_sampler

    pipe.scheduler = make_sampler("DPM++ 2M", pipe.scheduler)
    arguments = {"width": 64, "height": 64, "num_inference_steps": 2, "guidance_scale": 7.0}
    expected = pipe("a cat", generator=torch.Generator().manual_seed(5), **arguments).images[0]
    assert np.abs(pixels(single) - pixels(expected)).max() <= 2


def test_rows_of_one_kind_compile_nothing_more_and_a_lora_changes_the_picture(
    renderer: PipelineRenderer, checkpoint: Path, lora: Path
) -> None:
    row = Row(1, 1, SMALL, checkpoint, "f32")
    plain = pixels(renderer.render(row).images[0])
    compiles, loads = renderer.stats()["unet"]["compiles"], renderer.loads
    styled = replace(row, parameters=replace(SMALL, prompt="a cat <lora:style:1>"), loras=((lora, 1.0),))
    with_lora = pixels(renderer.render(styled).images[0])
    assert np.abs(with_lora - plain).max() > 2
    for sampler in ("Euler", "DDIM"):
        renderer.render(replace(styled, parameters=replace(styled.parameters, sampler=sampler, seed=9)))
    assert renderer.stats()["unet"]["compiles"] == compiles + 1
    assert np.array_equal(pixels(renderer.render(row).images[0]), plain), "without the LoRA it is the same picture as before"
    assert renderer.loads == loads


def test_the_page_finds_what_a_batch_has_made_last(renderer: PipelineRenderer, checkpoint: Path) -> None:
    renderer.render(Row(1, 1, SMALL, checkpoint, "f32"))
    found = likely(History(open_store(renderer._settings)).runs(kind_of(load_pipeline(checkpoint).unet)))
    assert found is not None
    assert (found.size, found.batch, found.choices) == ("64x64", 1, Choices(precision="f32"))
    assert {call.role for call in found.calls} == {"text_encoder", "unet", "vae_decode"}


@pytest.mark.parametrize("strength", [None, 0.5])
def test_what_a_prompt_says_after_77_tokens_counts(
    renderer: PipelineRenderer, checkpoint: Path, tmp_path: Path, strength: float | None
) -> None:
    Image.linear_gradient("L").save(tmp_path / "start.png")
    start = tmp_path / "start.png" if strength else None
    pictures = []
    for end in ("cat", "owl"):
        chosen = replace(SMALL, prompt="a " * 80 + end, batch=2, strength=strength)
        rendered = renderer.render(Row(1, 1, chosen, checkpoint, "f32", start, chunks=2))
        assert rendered.answered == "OpenVINO"
        assert len(rendered.images) == 2
        pictures.append(pixels(rendered.images[1]))
    assert np.abs(pictures[0] - pictures[1]).max() > 0


def test_a_picture_of_nan_is_a_failure(renderer: PipelineRenderer, checkpoint: Path, tmp_path: Path) -> None:
    weights = load_file(checkpoint)
    weights["first_stage_model.decoder.conv_out.bias"].fill_(float("nan"))
    save_file(weights, tmp_path / "nan.safetensors")
    error = execute(renderer, Row(1, 1, SMALL, tmp_path / "nan.safetensors", "f32"), "CPU").error
    assert error is not None
    assert error.startswith("OVBackendError: The picture is not finite")
    assert error.endswith("or the precision f32 if it was another.")  # here it is f32


def test_networks_that_compute_in_f32_instead_are_told_of_this_row_and_of_later_ones(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    try:
        devices.check(Settings(precision="bf16"))
    except DeviceError:
        pytest.skip("this CPU has no bf16")
    renderer = PipelineRenderer(Settings(precision="f32", cache_dir=str(tmp_path)))
    overflows = iter([False])
    monkeypatch.setattr(network, "is_finite", lambda outputs: next(overflows, True))
    rows = [Row(1, 1, SMALL, checkpoint, precision) for precision in ("bf16", "bf16", "f32")]
    answered = [renderer.render(row).answered for row in rows]
    renderer.close()
    assert answered == ["OpenVINO; text encoder in f32", "OpenVINO; text encoder in f32", "OpenVINO"]


def test_a_picture_starts_from_another_one(renderer: PipelineRenderer, checkpoint: Path, tmp_path: Path) -> None:
    Image.linear_gradient("L").save(tmp_path / "start.png")
    start = replace(SMALL, steps=4, strength=0.5)
    image = renderer.render(Row(1, 1, start, checkpoint, "f32", tmp_path / "start.png")).images[0]
    assert image.size == (64, 64)


def test_a_picture_that_a_camera_has_laid_on_its_side_is_upright(tmp_path: Path) -> None:
    picture, note = Image.new("RGB", (16, 8), (255, 0, 0)), Image.Exif()
    picture.paste((0, 0, 255), (0, 0, 8, 8))
    note[0x112] = 6
    picture.save(tmp_path / "start.png", exif=note)
    upright = _opened(tmp_path / "start.png")
    assert (upright.size, upright.getpixel((4, 2)), upright.getpixel((4, 14))) == ((8, 16), (0, 0, 255), (255, 0, 0))


def test_a_grey_picture_of_16_bits_keeps_its_greys(tmp_path: Path) -> None:
    grey = np.arange(16, dtype=np.uint16).reshape(4, 4) * 4369  # 0 to 65535
    Image.fromarray(grey).save(tmp_path / "start.png")
    opened = _opened(tmp_path / "start.png")
    assert opened.mode == "RGB"
    assert np.array_equal(pixels(opened)[..., 0], np.arange(16).reshape(4, 4) * 17)


def test_a_transparent_picture_is_on_white(tmp_path: Path) -> None:
    Image.new("RGBA", (8, 8), (0, 0, 255, 0)).save(tmp_path / "start.png")
    assert _opened(tmp_path / "start.png").getpixel((4, 4)) == (255, 255, 255)


def test_a_checkpoint_that_cannot_be_read_is_tried_once(checkpoint: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.safetensors"
    broken.write_bytes(checkpoint.read_bytes()[:-1])
    renderer = PipelineRenderer(Settings(precision="f32", cache_dir=str(tmp_path / "graphs")))
    row = Row(1, 1, SMALL, broken, "f32")
    with pytest.raises(CheckpointError, match="is damaged"):
        renderer.render(row)
    shutil.copy(checkpoint, broken)
    with pytest.raises(CheckpointError, match="is damaged"):
        renderer.render(row)
    assert renderer.loads == 0
