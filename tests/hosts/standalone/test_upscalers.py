"""Upscalers of hires fix: spandrel's own result, tile by tile, in OpenVINO; and what files are refused."""

from __future__ import annotations

import dataclasses
import os
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from ov_backend.checkpoint import TOKENIZER
from ov_backend.core.errors import OVBackendError, SettingsError
from ov_backend.core.patching import patch_forward
from ov_backend.core.settings import Settings
from ov_backend.engine.engine import Engine
from ov_backend.hosts.standalone import upscaler_files, upscalers
from ov_backend.ui.choices import Choices
from ov_backend.ui.infotext import Parameters
from ov_backend.ui.jobs import JobControl, compare
from ov_backend.ui.snapshot import Job

pytest.importorskip("diffusers")
if not TOKENIZER.is_dir():
    pytest.skip("the project's own vocabulary is not here", allow_module_level=True)

from ov_backend.checkpoint import load_pipeline
from ov_backend.hosts.standalone.generator import PictureGenerator
from tests.helpers.pictures import pixels
from tests.hosts.standalone.checkpoints import write_small_checkpoint

HIRES = Parameters("a cat", steps=2, width=64, height=64, seed=4, hires=1.5, strength=0.5, upscaler="tiny")
OPENVINO = Choices("CPU", "f32")
#: The VAE too is OpenVINO's: PyTorch's own normalisation is off by more than rounding for a picture so grey.
PYTORCH = Choices("CPU", "f32", unet=False, text_encoder=False)


@pytest.fixture(scope="module")
def spandrel() -> Any:
    """The package; two of its networks, not tested here, need torchvision, whose builds do not go with every PyTorch."""
    names = ("torchvision", "torchvision.transforms", "torchvision.transforms.functional")
    with pytest.MonkeyPatch.context() as patch:
        for name in names:
            patch.setitem(sys.modules, name, MagicMock())
        return pytest.importorskip("spandrel")


def esrgan(scale: int = 2, **options: int) -> dict[str, torch.Tensor]:
    """The weights of a small ESRGAN whose pictures are neither black nor white."""
    from spandrel.architectures.ESRGAN.__arch.RRDB import RRDBNet

    torch.manual_seed(scale)
    state = RRDBNet(num_filters=8, num_blocks=1, scale=scale, **options).state_dict()
    last = max((name for name in state if name.endswith("weight")), key=lambda name: int(name.split(".")[1]))
    state[last] *= 0.1
    state[last.replace("weight", "bias")] += 0.5
    return {name: weight.contiguous() for name, weight in state.items()}


@pytest.fixture(scope="module")
def folder(spandrel: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("upscalers")
    save_file(esrgan(), folder / "tiny.safetensors")
    torch.save(esrgan(4), folder / "four.pth")
    return folder


@pytest.fixture(scope="module")
def generator(folder: Path) -> PictureGenerator:
    pipe = load_pipeline(write_small_checkpoint(folder))
    return PictureGenerator(pipe, "x", folder / "out", str(folder / "graphs"), upscaler_folder=folder)


def photograph(width: int, height: int) -> Image.Image:
    y, x = np.mgrid[:height, :width] / 64
    bands = np.stack([np.sin(9 * x + 4 * y), np.cos(7 * y * x), np.hypot(x - 0.5, y - 0.5) < 0.3], axis=-1)
    return Image.fromarray((120 + 70 * bands).clip(0, 255).astype(np.uint8))


def by_spandrel(spandrel: Any, file: Path, picture: Image.Image) -> np.ndarray:
    """What spandrel itself makes of a whole picture."""
    pixels = torch.from_numpy(np.array(picture)).permute(2, 0, 1)[None] / 255
    return (spandrel.ModelLoader().load_from_file(file).eval()(pixels)[0].permute(1, 2, 0) * 255).numpy()


@pytest.mark.parametrize("where", ["pytorch", "openvino"])
@pytest.mark.parametrize("name", ["tiny.safetensors", "four.pth"])
@pytest.mark.parametrize("size", [(64, 40), (250, 200), (192, 410)])
def test_tiles_are_spandrel_s_picture(spandrel: Any, folder: Path, name: str, size: tuple[int, int], where: str) -> None:
    tiles: list[tuple[int, int]] = []
    picture, upscaler = photograph(*size), upscalers.Upscaler(folder / name)
    engine = Engine(Settings(precision="f32", model_caching=False))
    if where == "openvino":
        module = upscaler.module
        patch_forward(module, lambda forward: upscalers.upscaler_network(engine, "upscaler", module, forward))
    (made,) = upscaler([picture], (size[0] + 8, size[1]), lambda *tile: tiles.append(tile))
    expected = by_spandrel(spandrel, folder / name, picture)
    assert made.size == expected.shape[1::-1]
    assert np.abs(np.asarray(made) - expected).max() < 1.01, "a seam, or another picture"
    across, down = (1 if side <= 192 else 2 if side <= 368 else 3 for side in size)
    assert tiles == [(number + 1, across * down) for number in range(across * down)]
    if where == "openvino":
        statistics = engine.stats()["upscaler"]
        assert (statistics["calls"], statistics["compiles"], statistics["fallbacks"]) == (across * down, 1, {})


def test_it_enlarges_until_nothing_is_missing(spandrel: Any, folder: Path) -> None:
    (made,) = upscalers.Upscaler(folder / "tiny.safetensors")([photograph(16, 16)], (40, 56), lambda *tile: None)
    assert made.size == (64, 64)


def test_a_picture_of_nan_is_told_and_not_drawn_black(spandrel: Any, tmp_path: Path) -> None:
    save_file({name: weight * torch.nan for name, weight in esrgan().items()}, tmp_path / "x.safetensors")
    with pytest.raises(OVBackendError, match=r"The upscaler's picture is not finite.*f32 if it was another"):
        upscalers.Upscaler(tmp_path / "x.safetensors")([photograph(16, 16)], (32, 32), lambda *tile: None)


def test_hires_fix_by_a_network_runs_in_openvino_and_is_pytorch_s_picture(spandrel: Any, generator: PictureGenerator) -> None:
    pictures = []
    for choices in (PYTORCH, OPENVINO):
        made = generator.generate(dataclasses.replace(HIRES, batch=2), choices)
        pictures.append(np.stack([*map(pixels, made.files)]))
        assert "Hires upscale: 1.5, Hires upscaler: tiny" in made.infotext
    assert np.abs(np.subtract(*pictures)).max() <= 2
    assert pictures[0][0].shape == (96, 96, 3)
    assert "ran=UNet, VAE, text encoder, upscaler" in made.infotext
    network = generator.status.snapshot()["networks"]["upscaler"]
    assert (network["run_calls"], network["run_fallbacks"]) == (2, {})
    by_lanczos = generator.generate(dataclasses.replace(HIRES, upscaler="Lanczos"), OPENVINO)
    assert np.abs(pixels(by_lanczos.files[0]) - pictures[1][0]).mean() > 4
    assert "upscaler," not in by_lanczos.infotext
    assert "forward" not in vars(generator.upscalers.modules["upscaler"])


def test_another_upscaler_takes_the_first_one_s_place(spandrel: Any, generator: PictureGenerator) -> None:
    made = {}
    for name in ("tiny", "four", "tiny"):
        by_openvino, by_pytorch = (
            pixels(generator.generate(dataclasses.replace(HIRES, upscaler=name), each).files[0]) for each in (OPENVINO, PYTORCH)
        )
        assert np.abs(by_openvino - by_pytorch).mean() < 1
        assert name not in made or np.array_equal(made[name], by_openvino)
        made[name] = by_openvino
    assert np.abs(made["tiny"] - made["four"]).mean() > 4


def test_a_comparison_enlarges_by_the_last_picture_s_upscaler(spandrel: Any, generator: PictureGenerator) -> None:
    last = generator.generate(HIRES, OPENVINO)
    generator.upscalers.load(dataclasses.replace(HIRES, upscaler="four"))  # as for a picture that was refused later
    control = JobControl(Job("compare", total=2), threading.Event())
    comparison = compare(generator, control, generator.last_request(), OPENVINO)
    for side in (comparison.first, comparison.second):
        assert side.picture is not None
        assert np.abs(np.asarray(side.picture, dtype=int) - pixels(last.files[0])).mean() < 1


def test_an_interrupt_between_tiles_keeps_the_picture_before(
    spandrel: Any, generator: PictureGenerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    tile_begins = generator._tile_begins
    monkeypatch.setattr(generator, "_tile_begins", lambda *tile: (generator.interrupt(), tile_begins(*tile)))
    generated = generator.generate(HIRES, OPENVINO)
    assert generated.interrupted == (2, 2)
    assert Image.open(generated.files[0]).size == (64, 64)


def test_a_pickle_is_read_where_that_is_safe(spandrel: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", "2.5.1+cpu")
    with pytest.raises(OVBackendError, match=r"PyTorch 2\.5\.1\+cpu does not read four\.pth safely; install 2\.6"):
        upscalers.Upscaler(folder / "four.pth")
    upscalers.Upscaler(folder / "tiny.safetensors")


def test_a_file_is_read_again_once_it_was_replaced(spandrel: Any, tmp_path: Path) -> None:
    parameters = dataclasses.replace(HIRES, upscaler="x", hires=2.0)
    save_file(esrgan(), tmp_path / "x.safetensors")
    known = upscalers.Upscalers(tmp_path)
    known.load(parameters)
    first = known.modules["upscaler"]
    known.load(parameters)
    assert known.modules["upscaler"] is first
    stat = (tmp_path / "x.safetensors").stat()
    save_file(esrgan(4), tmp_path / "x.safetensors")
    os.utime(tmp_path / "x.safetensors", ns=(stat.st_atime_ns, stat.st_mtime_ns))  # as of an archive that is unpacked
    known.load(parameters)
    assert known.enlarge(parameters, [photograph(64, 64)], lambda *tile: None)[0].size == (256, 256)
    (tmp_path / "x.safetensors").unlink()
    with pytest.raises(OVBackendError, match="is no file; give the path of an upscaler"):
        known.load(parameters)


@pytest.mark.parametrize(
    "precision, config, expected",
    [
        ("auto", {}, "f32"),
        ("int8", {}, "f32"),
        ("bf16", {}, "bf16"),
        ("f32", {}, "f32"),
        ("auto", {"INFERENCE_PRECISION_HINT": "bf16"}, "auto"),
    ],
)
def test_without_a_chosen_precision_it_computes_in_f32(precision: str, config: dict[str, str], expected: str) -> None:
    module, engine = torch.nn.Conv2d(3, 3, 3), Engine(Settings(precision=precision, config=config, model_caching=False))
    patch_forward(module, lambda forward: upscalers.upscaler_network(engine, "upscaler", module, forward))
    with torch.no_grad():
        module(torch.ones(1, 3, 8, 8))
    assert engine.stats()["upscaler"]["calls"] == 1
    (key,) = engine.resources.compiled
    assert f"'precision': '{expected}'" in key.settings


def _lora() -> dict[str, torch.Tensor]:
    return {"lora_unet_mid.lora_down.weight": torch.ones(1, 1), "lora_unet_mid.lora_up.weight": torch.ones(1, 1)}


REFUSED = {
    "lora.safetensors": (_lora(), "is a LoRA, an addition to a checkpoint; give an upscaler"),
    "model.safetensors": ({"model.diffusion_model.out.2.bias": torch.ones(4)}, "is a checkpoint; give an upscaler"),
    "other.safetensors": ({"x": torch.ones(4)}, "is no upscaler that spandrel knows; give an upscaler"),
    "text.safetensors": (b"<!DOCTYPE html><p>log in", "is a web page"),
    "cut.safetensors": (b"\x10\0\0\0\0\0\0\0{", "is damaged: it has 9 bytes"),
    "page.pth": (b"<!DOCTYPE html><p>log in", "cannot be read"),
    "empty.pth": (b"", "cannot be read"),
    "list.pth": ([torch.ones(2)], "holds no weights by name"),
    "code.pth": ({"x": SimpleNamespace(x=1)}, "cannot be read"),
    "numbers.pth": ({1: 2}, "is no upscaler that spandrel knows"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_file_that_is_no_upscaler_is_refused_in_one_sentence(spandrel: Any, tmp_path: Path, name: str) -> None:
    content, message = REFUSED[name]
    path = tmp_path / name
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif path.suffix == ".pth":
        torch.save(content, path)
    else:
        save_file(content, path)
    with pytest.raises(OVBackendError, match=message) as refused:
        upscalers.Upscaler(path)
    text = str(refused.value)
    assert text.startswith(name)
    assert text.endswith(".")
    assert "\n" not in text


def test_a_network_that_enlarges_no_colour_pictures_is_refused(spandrel: Any, tmp_path: Path) -> None:
    denoiser = spandrel.architectures.DnCNN.DnCNN(in_nc=3, out_nc=3, nc=4, nb=8, act_mode="R").state_dict()
    networks = {"denoiser": denoiser, "grey": esrgan(in_nc=1, out_nc=1), "transparent": esrgan(in_nc=3, out_nc=4)}
    for name, state in networks.items():
        save_file({name: each.contiguous() for name, each in state.items()}, tmp_path / f"{name}.safetensors")
        with pytest.raises(OVBackendError, match=rf"{name}\.safetensors is a network .*; give an upscaler"):
            upscalers.Upscaler(tmp_path / f"{name}.safetensors")


def test_the_names_are_those_of_the_files_below_a_folder(spandrel: Any, tmp_path: Path) -> None:
    for name in ("b.pth", "below/A.safetensors", "readme.txt", "Lanczos.pth"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert upscalers.Upscalers(tmp_path).names == ["Lanczos", "A", "b", "Lanczos.pth"]
    assert upscalers.Upscalers(tmp_path / "none").names == ["Lanczos"]
    with pytest.raises(SettingsError, match="upscaler 'c' is not here; choose one of Lanczos, A, b"):
        upscalers.Upscalers(tmp_path).load(dataclasses.replace(HIRES, upscaler="c"))


def test_without_the_package_there_is_lanczos_alone_and_how_to_have_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upscaler_files.importlib.util, "find_spec", lambda name: None)
    (tmp_path / "b.pth").touch()
    assert upscalers.Upscalers(tmp_path).names == ["Lanczos"]
    assert "[upscalers]' adds networks such as ESRGAN" in upscaler_files.missing_package()


def test_a_folder_that_is_chosen_must_be_there(tmp_path: Path) -> None:
    assert upscaler_files.upscaler_folder(Path("models/x.safetensors"), None) == Path("models/upscaler")
    assert upscaler_files.upscaler_folder(Path("models/x.safetensors"), tmp_path) == tmp_path
    with pytest.raises(SettingsError, match=r"--upscaler-dir is .*, which is no folder"):
        upscaler_files.upscaler_folder(Path(), tmp_path / "none")


def test_a_job_file_s_seeds_are_those_of_earlier_versions() -> None:
    from ov_backend.batch.job import _chosen_seed

    assert _chosen_seed(1, HIRES) == _chosen_seed(1, dataclasses.replace(HIRES, upscaler="four", hires=2.0)) == 686451775


def test_two_files_of_one_name_are_told_apart_by_their_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upscaler_files, "missing_package", str)
    (tmp_path / "old").mkdir()
    files = [tmp_path / name for name in ("one.pth", "two.pth", "two.safetensors", "old/two.pth")]
    for file in files:
        file.touch()
    names = ["one", "two.pth", "two.safetensors", str(Path("old", "two.pth"))]
    assert upscaler_files.upscaler_files(tmp_path) == dict(zip(names, files))
