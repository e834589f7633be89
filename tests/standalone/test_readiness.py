"""The page prepares what was generated last before anybody asks, if it was used before and the last start survived that."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ov_backend.checkpoint import TOKENIZER
from ov_backend.ui.choices import Choices
from ov_backend.ui.infotext import Parameters

pytest.importorskip("diffusers")
if not TOKENIZER.is_dir():
    pytest.skip("the project's own vocabulary is not here", allow_module_level=True)

from ov_backend.checkpoint import load_pipeline
from ov_backend.standalone.generator import PictureGenerator
from tests.standalone.checkpoints import write_small_checkpoint

SMALL = Parameters("a cat", steps=2, width=64, height=64, seed=4)
OPENVINO = Choices("CPU", "f32", low_memory="off")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With a checkpoint, and what a process has left that generated a picture."""
    path = tmp_path_factory.mktemp("readiness")
    write_small_checkpoint(path, vae_levels=2)
    started(path).generate(SMALL, OPENVINO)
    return path


def started(folder: Path) -> PictureGenerator:
    (checkpoint,) = folder.glob("*.safetensors")
    return PictureGenerator(load_pipeline(checkpoint), "x", folder / "out", str(folder / "graphs"))


def ready(generator: PictureGenerator) -> list[str]:
    """The sizes that the panel says it is ready for, once the preparing is over."""
    thread = generator.prepare_likely()
    assert thread is not None
    thread.join(60)
    job = generator.status.snapshot()["job"]
    return job["result"]["sizes"] if job is not None else []


def test_the_first_picture_of_a_process_compiles_nothing(folder: Path) -> None:
    generator = started(folder)
    assert ready(generator) == ["64x64"]
    before = {name: (stats["captures"], stats["compiles"]) for name, stats in generator.status.snapshot()["networks"].items()}
    assert before["unet"] == before["vae_decode"] == before["text_encoder"] == (0, 1)
    generator.generate(SMALL, OPENVINO)
    after = {name: (stats["captures"], stats["compiles"]) for name, stats in generator.status.snapshot()["networks"].items()}
    assert after == before
    assert generator.status.snapshot()["job"] is None, "the generation has other news"


def test_a_start_that_died_meanwhile_prepares_nothing_until_the_user_says_so(folder: Path) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    (folder / "graphs" / f"{gone.pid}.preparing").touch()
    generator = started(folder)
    assert ready(generator) == []
    assert any("--no-prepare" in message for message in generator.status.snapshot()["messages"])
    assert started(folder).prepare_likely(enabled=False) is None
    assert ready(started(folder)) == ["64x64"]
    assert not list((folder / "graphs").glob("*.preparing"))
