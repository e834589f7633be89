"""The live status: stages, seconds per step, shares, compiled networks; written and read by many threads."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ov_backend import Settings
from ov_backend.core.errors import Interrupted, SettingsError
from ov_backend.core.tensors import TensorSpec
from ov_backend.engine.engine import Engine
from ov_backend.engine.stats import NetworkStats
from ov_backend.guards.signature import Signature
from ov_backend.ui import status as status_module
from ov_backend.ui.snapshot import INTERRUPTED, Job
from ov_backend.ui.status import Status


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(4, 4, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv(x).relu()


@pytest.fixture
def clock() -> Clock:
    return Clock()


LATENTS = Signature((TensorSpec("x", (2, 4, 64, 96), "f32"), TensorSpec("context", (2, 77, 768), "f32")), "")


def test_a_stage_is_shown_with_its_seconds_until_the_network_is_ready(clock: Clock) -> None:
    texts: list[str] = []
    status = Status(clock, texts.append)
    status.begin("768x512", 4)
    status.progress("unet", "capture", LATENTS)
    clock.now += 12.4
    snapshot = status.snapshot()
    assert snapshot["state"] == "preparing"
    assert snapshot["stage"] == {
        "network": "unet",
        "stage": "capture",
        "label": "Tracing UNet 768x512",
        "size": "768x512",
        "batch": 2,
        "seconds": 12.4,
        "number": 2,
        "stages": 4,
    }
    assert status.stage_text() == "Tracing UNet 768x512 (12 s)"
    status.progress("unet", "compile", LATENTS)
    assert status.snapshot()["stage"]["label"] == "Compiling UNet 768x512"
    status.progress("unet", "ready", LATENTS)
    assert status.snapshot()["state"] == "running"
    assert status.stage_text() == ""
    status.end()
    assert status.snapshot()["state"] == "idle"
    assert texts == ["", "Tracing UNet 768x512 (0 s)", "Compiling UNet 768x512 (0 s)", "", ""]


def test_a_long_stage_is_reported_every_tick_with_its_seconds(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status_module, "_TICK_S", 0.01)
    texts: list[str] = []
    status = Status(clock, texts.append)
    status.progress("unet", "compile", LATENTS)
    clock.now += 12
    deadline = time.monotonic() + 5
    while texts[-1] != "Compiling UNet 768x512 (12 s)":
        assert time.monotonic() < deadline
        time.sleep(0.01)
    status.progress("unet", "ready", LATENTS)
    count = len(texts)
    time.sleep(0.1)
    assert texts[-1] == ""
    assert len(texts) == count, "nothing is reported when nothing is prepared"
    status.progress("unet", "compile", LATENTS)
    assert texts[-1] == "Compiling UNet 768x512 (0 s)"
    status.progress("unet", "ready", LATENTS)


def test_seconds_per_step_leave_out_what_was_prepared_in_between(clock: Clock) -> None:
    status = Status(clock)
    status.begin("512x512", 4)
    clock.now += 30  # text encoder, and the first step with its compile
    status.step(1, 4)
    assert status.snapshot()["run"]["seconds_per_step"] is None, "no step was timed from its beginning yet"
    clock.now += 2
    status.step(2, 4)
    status.progress("unet", "compile", LATENTS)
    clock.now += 10
    status.progress("unet", "ready", LATENTS)
    clock.now += 4
    status.step(3, 4)
    run = status.snapshot()["run"]
    assert (run["step"], run["steps"], run["seconds_per_step"], run["average_seconds_per_step"]) == (3, 4, 4.0, 3.0)


def test_what_is_done_between_two_passes_is_no_step(clock: Clock) -> None:
    status = Status(clock=clock)
    status.begin("Making 64x64", 2)
    for step in (1, 2):
        clock.now += 2
        status.step(step, 2)
    clock.now += 50
    status.between_steps("Enlarging, tile 1 of 4")
    run = status.snapshot()["run"]
    assert (run["what"], run["step"], run["average_seconds_per_step"]) == ("Enlarging, tile 1 of 4", 0, 2.0)
    for step in (1, 2):
        clock.now += 2
        status.step(step, 2)
    run = status.snapshot()["run"]
    assert (run["what"], run["step"], run["average_seconds_per_step"]) == ("Making 64x64", 2, 2.0)
    status.between_steps("Enlarging, tile 1 of 4")
    status.end()
    assert status.snapshot()["run"]["what"] == "Making 64x64"


def test_another_pass_is_not_timed_from_the_last_one(clock: Clock) -> None:
    status = Status(clock)
    status.begin("512x512", 2)
    for number in (1, 2):
        clock.now += 1
        status.step(number, 2)
    clock.now += 50  # the VAE, an upscaler
    status.step(1, 3)
    assert status.snapshot()["run"]["average_seconds_per_step"] == 1.0
    clock.now += 3
    status.step(2, 3)
    assert status.snapshot()["run"]["average_seconds_per_step"] == 2.0


def test_a_step_reported_twice_is_one_step(clock: Clock) -> None:
    status = Status(clock)
    status.begin("512x512", 3)
    for number in (1, 1, 2, 2, 3):
        clock.now += 1
        status.step(number, 3)
    run = status.snapshot()["run"]
    assert (run["step"], run["seconds_per_step"], run["average_seconds_per_step"]) == (3, 2.0, 2.0)


def test_a_single_step_has_no_average(clock: Clock) -> None:
    status = Status(clock)
    status.begin("512x512", 1)
    status.step(1, 1)
    status.end()
    run = status.snapshot()["run"]
    assert run["seconds"] == 0.0
    assert run["average_seconds_per_step"] is None
    assert run["shares"] == {}


def test_the_error_stays_and_steps_after_the_end_are_not_counted(clock: Clock) -> None:
    status = Status(clock)
    status.begin("512x512", 4)
    status.end("interrupted")
    status.step(1, 4)
    clock.now += 5
    run = status.snapshot()["run"]
    assert (run["active"], run["error"], run["step"], run["seconds"]) == (False, "interrupted", 0, 0.0)


def test_a_real_engine_reports_stages_counts_and_shares(strict: Callable[..., Settings]) -> None:
    status, stages = Status(), []

    def progress(network: str, stage: str, signature: Any) -> None:
        status.progress(network, stage, signature)
        stages.append((stage, status.snapshot()["state"]))

    engine = Engine(strict(), progress)
    status.attach(engine)
    net = Net().eval()
    network = engine.network("unet", net)
    status.begin("64x64", 3)
    x = torch.randn(1, 4, 8, 8)
    for number in (1, 2, 3):
        assert torch.allclose(network(x), net(x), atol=1e-4)
        status.step(number, 3)
    status.end()
    assert [stage for stage, _ in stages] == ["read", "ready", "capture", "convert", "compile", "ready"]
    assert [state for _, state in stages] == ["preparing", "running", *["preparing"] * 3, "running"]
    snapshot = status.snapshot()
    assert json.loads(json.dumps(snapshot)) == snapshot
    (row,) = snapshot["compiled"]
    assert (row["size"], row["batch"], row["device"], row["precision"]) == ("64x64", 1, "CPU", "f32")
    assert (row["calls"], row["hits"], row["coverage_percent"], row["in_pytorch"]) == (3, 2, 100.0, {})
    assert row["compile_seconds"] > 0
    assert snapshot["networks"]["unet"]["calls"] == 3
    shares = snapshot["run"]["shares"]
    assert shares["preparing"] > 0
    assert shares["unet"] > 0
    assert sum(shares.values()) == pytest.approx(1.0)
    network(torch.randn(2, 4, 8, 8))  # a job after the end
    assert status.snapshot()["run"]["shares"] == shares


def test_compiled_networks_are_sorted_and_told_apart(strict: Callable[..., Settings]) -> None:
    engine = Engine(strict())
    status = Status()
    status.attach(engine)
    with torch.no_grad():
        for name, sizes in (("vae_decode", [8]), ("unet", [16, 8])):
            net = Net().eval()
            for size in sizes:
                engine.network(name, net)(torch.randn(1, 4, size, size))
        net.conv.weight.mul_(2)
        engine.network("unet", net)(torch.randn(1, 4, 8, 8))
    rows = status.snapshot()["compiled"]
    assert [(row["label"], row["size"]) for row in rows] == [
        ("UNet", "64x64"), ("UNet", "64x64"), ("UNet", "128x128"), ("VAE decoder", "64x64"),
    ]  # fmt: skip
    variants = [row["variant"] for row in rows]
    assert variants[2:] == ["", ""]
    assert variants[0] != variants[1]
    assert all(text.startswith("weights ") for text in variants[:2])


def test_what_an_interrupted_generation_leaves_to_be_prepared_is_no_news() -> None:
    now = iter(range(100))
    status = Status(clock=lambda: float(next(now)))
    status.begin("64x64", 3)
    status.progress("unet", "compile", LATENTS)
    assert status.snapshot()["stage"].get("left_over") is None
    status.end(INTERRUPTED)
    assert status.snapshot()["stage"]["left_over"] is True
    status.progress("vae_decode", "compile", LATENTS)
    assert status.snapshot()["stage"].get("left_over") is None


def test_the_result_of_a_job_goes_away_when_a_generation_begins() -> None:
    status = Status()
    status.job = Job("precompile", state="done")
    assert status.snapshot()["job"]["state"] == "done"
    status.begin("one")
    assert status.snapshot()["job"] is None
    status.job = Job("precompile")  # one that runs generates by itself
    status.begin("two")
    assert status.snapshot()["job"]["state"] == "running"


def test_a_size_that_the_last_picture_had_is_no_news() -> None:
    status = Status()
    assert status.may_show_ready("64x64", is_new=False)
    status.begin("Making 64x64")
    assert not status.may_show_ready("96x64", is_new=True), "a picture is being made"
    status.end()
    assert not status.may_show_ready("64x64", is_new=False)
    assert status.may_show_ready("64x64", is_new=True)
    assert status.may_show_ready("96x64", is_new=False)
    status.job = Job("precompile", state="done")
    assert status.may_show_ready("64x64", is_new=False), "in the place of another size"
    status.job = Job("compare", state="done")
    assert not status.may_show_ready("96x64", is_new=True)


@pytest.mark.parametrize(
    ("failure", "said"),
    [
        (ZeroDivisionError("by zero"), "ZeroDivisionError: by zero"),
        (SettingsError("Give another seed."), "Give another seed."),
        (Interrupted("while a network was prepared"), "Interrupted."),
    ],
)
def test_a_generation_that_fails_says_why(failure: Exception, said: str) -> None:
    status = Status()
    with pytest.raises(type(failure)), status.generation("Making 64x64", 4):
        raise failure
    run = status.snapshot()["run"]
    assert (run["active"], run["error"], status.runs) == (False, said, 1)
    with status.generation("Extras", interrupted=lambda: True):
        """The user ends it, and the host returns what it has."""
    assert status.snapshot()["run"]["error"] == "Interrupted."


def test_overlapping_stages_are_counted_once_and_waiting_for_one_is_preparing(clock: Clock) -> None:
    status = Status(clock)
    status.progress("unet", "compile", LATENTS)  # left behind by an interrupted generation
    clock.now += 3
    status.begin("512x512", 4)
    status.progress("vae_decode", "compile", LATENTS)
    clock.now += 6
    status.progress("unet", "ready", LATENTS)
    status.progress("vae_decode", "ready", LATENTS)
    clock.now += 2
    assert status.snapshot()["run"]["shares"] == {"preparing": 0.75, "other": 0.25}
    status.end()
    clock.now += 9
    assert status.snapshot()["run"]["shares"] == {"preparing": 0.75, "other": 0.25}


def test_a_step_beside_a_stage_in_the_background_keeps_its_seconds(clock: Clock) -> None:
    engine = SimpleNamespace(networks={"unet": SimpleNamespace(statistics=NetworkStats())})
    status = Status(clock)
    status.begin("512x512", 2)
    status.attach(engine)
    status.step(1, 2)
    status.progress("vae_decode", "compile", LATENTS)
    clock.now += 5
    engine.networks["unet"].statistics.seconds["infer"] += 4
    status.step(2, 2)
    status.progress("vae_decode", "ready", LATENTS)
    status.end()
    assert status._run is not None
    assert status._run.last_step_seconds == 4.0
    assert status._run.shares == {"unet": 0.8, "preparing": 0.2, "other": 0.0}


def test_threads_read_it_while_another_writes_it(strict: Callable[..., Settings]) -> None:
    engine = Engine(strict())
    status = Status()
    engine.resources.progress = status.progress
    status.attach(engine)
    net = Net().eval()
    network = engine.network("unet", net)
    done, errors, read = threading.Event(), [], [0]

    def reader() -> None:
        while not done.is_set():
            try:
                json.dumps(status.snapshot())
                read[0] += 1
            except Exception as error:
                errors.append(error)
                return

    readers = [threading.Thread(target=reader) for _ in range(4)]
    for thread in readers:
        thread.start()
    for size in (4, 6, 8):
        status.begin(str(size), 2)
        with torch.no_grad():  # gradients are a state of each thread
            for number in (1, 2):
                network(torch.randn(1, 4, size, size))
                status.step(number, 2)
        status.end()
    done.set()
    for thread in readers:
        thread.join()
    assert errors == []
    assert read[0] > 10
    assert len(status.snapshot()["compiled"]) == 3
