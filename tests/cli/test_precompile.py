"""``python -m ov_backend precompile``: a later picture finds its graphs on disk; bad input is one sentence."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("diffusers")

from ov_backend import Settings
from ov_backend.batch.renderer import PipelineRenderer
from ov_backend.batch.row import Row
from ov_backend.checkpoint import TOKENIZER, load_pipeline
from ov_backend.cli import main as cli
from ov_backend.cli.precompile import Prepared, batches, sizes
from ov_backend.core.errors import OVBackendError
from ov_backend.engine.compile_job import CompileJob
from ov_backend.hosts.standalone.generator import PictureGenerator
from ov_backend.ui.choices import Choices
from ov_backend.ui.infotext import Parameters
from tests.cli.conftest import Refusal

if not TOKENIZER.is_dir():
    pytest.skip("the project's own vocabulary is not here", allow_module_level=True)


@pytest.fixture
def arguments(checkpoint: Path, tmp_path: Path) -> list[str]:
    return [str(checkpoint), "--cache-dir", str(tmp_path / "graphs"), "--precision", "f32"]


def test_the_demo_and_a_second_precompile_convert_nothing_afterwards(
    arguments: list[str], checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["precompile", *arguments, "--sizes", "64x72", "--batch", "1,2", "--json"]) == 0
    printed = capsys.readouterr()
    result = json.loads(printed.out)
    ready = [(each["width"], each["height"], each["batch"]) for each in result["ready"]]
    assert ready == [(64, 72, 1), (64, 72, 2)]
    assert [each["captures"] for each in result["ready"]] == [3, 2], "the text encoder is the same for both"
    assert result["fallbacks"] == {}
    assert result["folder"] == str(tmp_path / "graphs")
    assert printed.err.count("ready after") == 2
    assert "64x72, 1 picture at once: preparing UNet" in printed.err
    assert "64x72, 2 pictures at once: preparing VAE decoder" in printed.err
    demo = ["demo", "--checkpoint", *arguments, "--size", "64x72", "--steps", "1", "--out", str(tmp_path / "x.png"), "--json"]
    assert cli.main(demo) == 0
    networks = json.loads(capsys.readouterr().out)["networks"]
    used = {name: values for name, values in networks.items() if values["calls"]}
    assert {name: (values["captures"], values["graph_hits"]) for name, values in used.items()} == {
        "unet": (1, 1),
        "vae_decode": (1, 1),
        "text_encoder": (1, 1),
    }
    assert cli.main(["precompile", *arguments, "--sizes", "64x72"]) == 0  # once more, as text
    out = capsys.readouterr().out
    assert "64x72, 1 picture at once: ready after" in out
    assert "3 captured, 3 found on disk, 3 compiled)" in out
    assert out.endswith("graphs. The next start compiles from them; it converts nothing.\n")


def test_the_page_and_a_batch_convert_nothing_after_a_precompile(
    arguments: list[str], checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["precompile", *arguments, "--sizes", "64x72"]) == 0
    capsys.readouterr()
    samplers = ("Euler", "DDIM")  # the first counts its timesteps in f32, the second in int64
    pictures = [Parameters("a cat", steps=1, width=64, height=72, seed=1, sampler=sampler) for sampler in samplers]
    generator = PictureGenerator(load_pipeline(checkpoint), "x", tmp_path / "out", str(tmp_path / "graphs"))
    renderer = PipelineRenderer(Settings(precision="f32", cache_dir=str(tmp_path / "graphs")))
    for picture in pictures:
        generator.generate(picture, Choices("CPU", "f32"))
        renderer.render(Row(1, 1, picture, checkpoint, "f32"))
    for networks in (generator.status.snapshot()["networks"], renderer.stats()):
        used = {name: (values["captures"], values["graph_hits"]) for name, values in networks.items() if values["calls"]}
        assert used == {"unet": (1, 1), "vae_decode": (1, 1), "text_encoder": (1, 1)}
    generator.close()
    renderer.close()


def test_sizes_and_batches_are_read_in_their_order() -> None:
    assert sizes("64x72,64") == [(64, 72), (64, 64)]
    assert batches("2,1") == [2, 1]


def test_counts_are_in_the_text_of_a_size() -> None:
    text = "80x64, 2 pictures at once: ready after 1.5 s (3 captured, 0 found on disk, 3 compiled"
    assert str(Prepared(80, 64, 2, 1.51, 3, 0, 3, 0)) == f"{text})"
    assert str(Prepared(80, 64, 2, 1.51, 3, 0, 3, 2)) == f"{text}, 2 compiled before)"


def test_a_network_left_to_pytorch_is_reported(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> None:
        raise OVBackendError("planted")

    monkeypatch.setattr(CompileJob, "_program", fail)
    assert cli.main(["precompile", *arguments, "--sizes", "64", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["fallbacks"]["unet"] == {"planted": 1}


BAD = [
    (["--sizes", "100x64"], "The size 100x64 cannot be drawn: 100 is"),
    (["--sizes", "64x64,8"], "The size 8x8 cannot be drawn: 8 is"),
    (["--sizes", "64x"], "'64x' is no size"),
    (["--sizes", ""], "'' is no size"),
    (["--sizes", "9999999999x64"], "is no size"),
    (["--sizes", "64x64x64"], "is no size"),
    (["--batch", "0"], "'0' is no batch"),
    (["--batch", "1,many"], "'many' is no batch"),
    (["--batch", "17"], "from 1 to 16"),
    (["--device", "TOASTER"], "TOASTER"),
    (["--precision", "f8"], "'f8' is no precision; give one of auto, f32, bf16, f16, int8"),
    (["--blob-cache", "perhaps"], "there is no 'perhaps'"),
]


@pytest.mark.parametrize("more,words", BAD, ids=lambda value: " ".join(value) if isinstance(value, list) else "")
def test_bad_input_is_one_sentence(arguments: list[str], more: list[str], words: str, assert_refused: Refusal) -> None:
    assert_refused(["precompile", *arguments, *more], words)


def test_a_checkpoint_that_is_not_there_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["precompile", str(tmp_path / "none.safetensors")]) == 2
    assert "none.safetensors is no file" in capsys.readouterr().err
