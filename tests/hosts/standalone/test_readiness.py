"""The page prepares what was generated last before anybody asks, if it was used before and the last start survived that."""

from __future__ import annotations

import dataclasses
import random
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, NamedTuple

import gradio
import numpy
import pytest
import torch

from ov_backend.checkpoint import TOKENIZER
from ov_backend.ui.choices import Choices
from ov_backend.ui.infotext import Parameters

pytest.importorskip("diffusers")
if not TOKENIZER.is_dir():
    pytest.skip("the project's own vocabulary is not here", allow_module_level=True)

from ov_backend.checkpoint import load_pipeline
from ov_backend.hosts.standalone.generator import PictureGenerator
from ov_backend.hosts.standalone.samplers import DEFAULT
from ov_backend.ui.likely import RequestedShape
from ov_backend.ui.likely import prepared as result_of
from tests.hosts.standalone.checkpoints import write_small_checkpoint

SMALL = Parameters("a cat", steps=2, width=64, height=64, seed=4, sampler=DEFAULT)
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
    generator.prepare_likely()
    generator.controller.readiness.wait()
    job = generator.status.snapshot()["job"]
    return job["result"]["sizes"] if job is not None else []


class Prepared(NamedTuple):
    """A generator after the preparing, the random states before and after it, and which threads have decoded a picture."""

    generator: PictureGenerator
    random_states: tuple[list[str], list[str]]
    decoded_by: list[str]


@pytest.fixture(scope="module")
def prepared(folder: Path) -> Prepared:
    generator = started(folder)
    before, decoded_by = random_states(), count_decoded(generator)
    assert ready(generator) == ["64x64"]
    return Prepared(generator, (before, random_states()), decoded_by)


def random_states() -> list[str]:
    return [str(torch.get_rng_state().tolist()), str(random.getstate()), str(numpy.random.get_state())]


def count_decoded(generator: PictureGenerator) -> list[str]:
    """A list that grows by a thread's name whenever that asks the VAE for a picture."""
    threads, decode = [], generator.pipe.vae.decode

    def counted(*args: Any, **kwargs: Any) -> Any:
        threads.append(threading.current_thread().name)
        return decode(*args, **kwargs)

    generator.pipe.vae.decode = counted
    return threads


def test_preparing_draws_no_random_number(prepared: Prepared) -> None:
    before, after = prepared.random_states
    assert after == before


def test_the_first_picture_of_a_process_compiles_nothing_and_fits_no_previews(prepared: Prepared) -> None:
    generator = prepared.generator
    before = {name: (stats["captures"], stats["compiles"]) for name, stats in generator.status.snapshot()["networks"].items()}
    assert before["unet"] == before["vae_decode"] == before["text_encoder"] == (1, 1)
    assert prepared.decoded_by == ["openvino-ready"]
    generator.generate(SMALL, OPENVINO)
    after = {name: (stats["captures"], stats["compiles"]) for name, stats in generator.status.snapshot()["networks"].items()}
    assert after == before
    assert prepared.decoded_by[1:] == [threading.current_thread().name], "the picture itself"
    assert generator.status.snapshot()["job"] is None, "the generation has other news"


def test_a_picture_that_is_asked_for_meanwhile_has_its_previews_fitted_once(folder: Path) -> None:
    generator = started(folder)
    decoded_by = count_decoded(generator)
    generator.prepare_likely()
    generator.generate(SMALL, OPENVINO)
    generator.controller.readiness.wait()
    assert len(decoded_by) == 2, "the fit, and the picture"


#: Prepares, and then prints what the first picture imports.
_NEW_MODULES = """
import sys
from pathlib import Path
from tests.hosts.standalone import test_readiness as tests
generator = tests.started(Path(sys.argv[1]))
assert tests.ready(generator) == ["64x64"]
before = set(sys.modules)
generator.generate(tests.SMALL, tests.OPENVINO)
print(sorted(set(sys.modules) - before))
"""


@pytest.mark.skipif(int(gradio.__version__.split(".")[0]) < 5, reason="the standalone page needs current Gradio")
def test_after_preparing_the_first_picture_imports_nothing(folder: Path) -> None:
    command = [sys.executable, "-c", _NEW_MODULES, str(folder)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert result.stdout.splitlines()[-1:] == ["[]"], result.stdout + result.stderr


def test_a_start_that_died_meanwhile_prepares_nothing_until_the_user_says_so(folder: Path) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    (folder / "graphs" / f"{gone.pid}.preparing").touch()
    generator = started(folder)
    assert ready(generator) == []
    assert any("--no-prepare" in message for message in generator.status.snapshot()["messages"])
    started(folder).prepare_likely(enabled=False)
    assert ready(started(folder)) == ["64x64"]
    assert not list((folder / "graphs").glob("*.preparing"))


def test_another_checkpoint_that_is_chosen_is_made_ready_too(folder: Path, tmp_path: Path) -> None:
    generator = started(folder)
    assert ready(generator) == ["64x64"]
    generator.checkpoints = {"other": write_small_checkpoint(tmp_path, "other", vae_levels=2, seed=1)}
    generator.load("other")
    generator.controller.readiness.wait()
    job = generator.status.snapshot()["job"]
    assert (generator.model, job and job["result"]["sizes"]) == ("other", ["64x64"])


def asked_for(generator: PictureGenerator, asked: RequestedShape) -> dict[str, int]:
    """How many graphs of each network are compiled once what was asked for is prepared."""
    generator.controller.readiness.size_changed(asked)
    generator.controller.readiness.wait()
    networks = generator.status.snapshot()["networks"]
    return {name: stats["compiles"] for name, stats in networks.items() if stats["compiles"]}


def test_a_size_that_was_made_before_is_ready_once_the_page_shows_it(folder: Path) -> None:
    started(folder).generate(dataclasses.replace(SMALL, width=128), OPENVINO)
    started(folder).generate(SMALL, OPENVINO)
    generator = started(folder)
    wide, small = RequestedShape(128, 64, 1, False), RequestedShape(64, 64, 1, False)
    assert asked_for(generator, wide) == {}, "nothing is prepared unless the start was to prepare"
    assert ready(generator) == ["128x64"], "what the page shows"
    before = asked_for(generator, RequestedShape(192, 64, 1, False))
    assert before["unet"] == before["vae_decode"] == 1, "this size was never made"
    assert asked_for(generator, RequestedShape(128, 64, 1, True)) == before, "nor one from a picture"
    after = asked_for(generator, small)
    assert after["unet"] == after["vae_decode"] == 2
    assert generator.status.snapshot()["job"]["result"] == result_of(["64x64"], 1, OPENVINO)
    generator.generate(SMALL, OPENVINO)
    assert asked_for(generator, small) == after, "the picture has compiled nothing"
