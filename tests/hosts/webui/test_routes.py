"""The panel's buttons in the stand-in WebUI: preparing sizes, and comparing with PyTorch."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

from ov_backend.core.errors import Interrupted
from ov_backend.ui import jobs
from ov_backend.ui.choices import Choices
from ov_backend.ui.jobs import JobControl
from ov_backend.ui.snapshot import Job
from tests.hosts.webui.conftest import TITLE, arguments, before_every_step, engine_stats

F32 = Choices("CPU", "f32")


def job_control() -> JobControl:
    return JobControl(Job("precompile", total=2), threading.Event())


def prepared() -> dict[str, tuple[int, int]]:
    """Per network, how many graphs were captured or loaded, and how many compiled."""
    return {name: (stats["captures"] + stats["graph_hits"], stats["compiles"]) for name, stats in engine_stats().items()}


def prepare(sizes: list[tuple[int, int]], batch: int, control: JobControl) -> None:
    from ov_backend.hosts.webui.webui_host import webui_host

    jobs.precompile(webui_host, control, sizes, batch, F32)


def test_generations_of_precompiled_sizes_compile_nothing(host: SimpleNamespace, compare: Any) -> None:
    from ov_backend.hosts.webui.session import session

    control = job_control()
    run = session.status.snapshot()["run"]
    prepare([(40, 32), (32, 48)], 2, control)
    assert control.job.done == 2
    assert session.status.snapshot()["run"] == run, "a job is no generation"
    before = prepared()
    assert before["unet"][1] >= 2
    compare(prompt="a cat", negative_prompt="blurry", width=40, height=32, batch_size=2)
    compare(prompt="a dog", width=32, height=48, batch_size=2)
    assert prepared() == before
    assert host.shared.state.job == ""
    assert not host.shared.cmd_opts.no_prompt_history


def test_a_precompile_can_be_cancelled(host: SimpleNamespace, compare: Any) -> None:
    control = job_control()
    control.cancelled.set()
    with pytest.raises(Interrupted):
        prepare([(56, 32)], 1, control)
    assert control.job.done == 0
    compare(prompt="a cat")


def test_a_job_generates_with_the_scripts_that_the_host_asks_for(host: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    from ov_backend.hosts.webui.detect import host as webui

    hooks: list[str] = []
    runner = SimpleNamespace(hook=lambda name, *args, **kwargs: hooks.append(name), scripts=[])
    monkeypatch.setattr(webui, "runner", lambda: runner)
    prepare([(40, 32)], 1, job_control())
    assert "process_batch" in hooks


def test_the_webui_s_own_interrupt_ends_a_precompile(host: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    control = job_control()
    begin = host.shared.state.begin

    def begin_and_interrupt(job: str = "") -> None:
        begin(job=job)
        host.shared.state.interrupt()

    monkeypatch.setattr(host.shared.state, "begin", begin_and_interrupt)
    with pytest.raises(Interrupted):
        prepare([(64, 32), (64, 48)], 1, control)
    assert control.job.done == 0


@pytest.mark.parametrize("start", [None, Image.linear_gradient("L").convert("RGB").resize((32, 40))], ids=["text", "picture"])
def test_a_comparison_makes_the_last_picture_by_both(host: SimpleNamespace, start: Image.Image | None) -> None:
    from ov_backend.hosts.webui.webui_host import webui_host

    fields = {} if start is None else {"init_images": [start], "denoising_strength": 0.7}
    last = host.processing.generate(TITLE, arguments(), prompt="a cat", seed=3, width=32, height=40, **fields)
    control = JobControl(Job("compare", total=2), threading.Event())
    comparison = jobs.compare(webui_host, control, webui_host.last_request(), F32)
    assert (comparison.size, comparison.batch) == ((32, 40), 1)
    for measured in (comparison.first, comparison.second):
        assert np.abs(np.array(measured.picture, dtype=int) - np.array(last.images[0], dtype=int)).max() <= 1
        assert measured.picture_seconds is not None
        assert measured.picture_seconds > measured.step_seconds > 0
    assert control.job.done == 2
    assert not host.shared.cmd_opts.no_prompt_history


def test_an_interrupted_generation_says_so_and_is_not_compared(host: SimpleNamespace) -> None:
    from ov_backend.hosts.webui.session import session

    host.processing.generate(TITLE, arguments(), prompt="whole", seed=3)
    with before_every_step(lambda _: host.shared.state.interrupt()):
        host.processing.generate(TITLE, arguments(), prompt="interrupted", seed=3)
    assert session.status.snapshot()["run"]["error"] == "Interrupted."
    assert session.last_request is not None
    assert session.last_request.values["prompt"] == "whole"


def test_what_was_ready_for_one_checkpoint_is_not_said_of_another(host: SimpleNamespace) -> None:
    from ov_backend.hosts.webui.session import session

    session.status.job = Job("precompile", state="done")
    host.sd_models.reload_model_weights("b")
    assert session.status.snapshot()["job"] is None


def test_of_a_batch_the_first_picture_is_compared(host: SimpleNamespace) -> None:
    from ov_backend.hosts.webui.last_request import LastRequest

    of_forge = {"hr_cfg": 0.0, "distilled_cfg_scale": 2.0, "hr_additional_modules": ["Use same choices"]}
    p = SimpleNamespace(prompt="{a|b} cat", seed=-1, steps=4, width=64, height=32, init_images=["first", "second"], batch_size=2)
    vars(p).update(of_forge)
    p.all_prompts, p.all_seeds, p.image_mask = ["a cat", "b cat"], [11, 12], "mask"
    request = LastRequest.of(p)
    assert request.size == (64, 32)
    expected = {"prompt": "a cat", "seed": 11, "init_images": ["first"], "mask": "mask", "steps": 4, **of_forge}
    assert {name: request.values[name] for name in expected} == expected
    assert "batch_size" not in request.values
