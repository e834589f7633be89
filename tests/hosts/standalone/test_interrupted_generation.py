"""What interrupts a generation of the standalone page, keeps its picture and leaves the next one."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch

from ov_backend.core.errors import Interrupted
from ov_backend.core.patching import patch_forward
from ov_backend.ui.choices import Choices
from ov_backend.ui.infotext import Parameters

pytest.importorskip("diffusers")

from ov_backend.hosts.standalone.generated import Generated
from ov_backend.hosts.standalone.generator import PictureGenerator
from tests.helpers.layers_in_8_bits import needs_vnni
from tests.helpers.pictures import pixels

SMALL = Parameters("a cat", steps=2, width=64, height=64, seed=4)
PYTORCH = Choices("CPU", "f32", unet=False, vae=False, text_encoder=False)


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_an_interrupt_ends_a_generation_keeps_its_picture_and_leaves_the_next_one(generator: PictureGenerator) -> None:
    results: list[Generated] = []
    thread = threading.Thread(
        target=lambda: results.append(generator.generate(Parameters(steps=500, width=64, height=64), PYTORCH))
    )
    thread.start()
    wait_until(lambda: (generator.status.snapshot()["run"] or {}).get("step", 0) > 0 and generator.status.generating)
    wait_until(lambda: generator.preview is not None)
    generator.interrupt()
    thread.join(20)
    (partial,) = results
    run = generator.status.snapshot()["run"]
    assert partial.interrupted == (run["step"], 500)
    assert f"Interrupted after step: {run['step']}" in partial.infotext
    assert Parameters.from_text(partial.infotext)[0].steps == 500
    assert pixels(partial.files[0]).shape == (64, 64, 3)
    assert run["error"] == "Interrupted."
    assert run["step"] < 500
    assert not generator.generate(SMALL, PYTORCH).interrupted


def test_a_request_that_waits_is_withdrawn_alone(generator: PictureGenerator) -> None:
    results: list[Generated] = []
    thread = threading.Thread(target=lambda: results.append(generator.generate(dataclasses.replace(SMALL, steps=100), PYTORCH)))
    thread.start()
    wait_until(lambda: generator.status.generating)
    withdrawn = threading.Event()
    threading.Timer(0.1, withdrawn.set).start()
    with pytest.raises(Interrupted):
        generator.generate(SMALL, PYTORCH, withdrawn=withdrawn)
    assert thread.is_alive()
    thread.join(60)
    assert results[0].interrupted is None


def test_a_request_that_runs_is_withdrawn(generator: PictureGenerator, monkeypatch: pytest.MonkeyPatch) -> None:
    withdrawn = threading.Event()
    monkeypatch.setattr(generator.status, "step", lambda done, steps: withdrawn.set() if done == 3 else None)
    parameters = dataclasses.replace(SMALL, steps=100)
    assert generator.generate(parameters, PYTORCH, withdrawn=withdrawn).interrupted == (3, 100)
    monkeypatch.undo()
    assert generator.generate(SMALL, PYTORCH).interrupted is None


def test_an_interrupt_while_the_decoder_is_compiled_keeps_the_picture(
    generator: PictureGenerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*args: object, **kwargs: object) -> None:
        raise Interrupted("while a network was being compiled")

    parameters = Parameters("a cat", steps=2, width=64, height=64, seed=4)
    (expected,) = generator.generate(parameters, PYTORCH).files
    decoder = generator.pipe.vae.decoder
    monkeypatch.setattr(generator, "accelerated", lambda *_: generator_that_interrupts(decoder, interrupted))
    (kept,) = generator.generate(parameters, PYTORCH).files
    assert np.abs(pixels(kept) - pixels(expected)).max() <= 1


@contextlib.contextmanager
def generator_that_interrupts(module: torch.nn.Module, forward: Callable[..., None]) -> Iterator[None]:
    patch = patch_forward(module, lambda original: forward)
    try:
        yield
    finally:
        patch.undo()


@needs_vnni
def test_a_generation_that_is_interrupted_does_not_calibrate_int8(
    generator: PictureGenerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    step, calls = generator.status.step, []

    def interrupt(done: int, total: int) -> None:
        step(done, total)
        if done == 9 and not calls:
            generator.interrupt()

    monkeypatch.setattr(generator.status, "step", interrupt)
    for _ in range(2):
        generator.generate(dataclasses.replace(SMALL, steps=12), Choices("CPU", "int8", vae=False, text_encoder=False))
        (observed,) = generator._networks["unet"].precision.observed.values()
        calls.append(observed.calls)
    assert calls[0] == 0
    assert calls[1] >= 12
