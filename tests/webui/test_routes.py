"""The panel's "Precompile" in the stand-in WebUI: later generations of a size capture and compile nothing."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from ov_backend.errors import Interrupted
from ov_backend.ui.choices import Choices
from ov_backend.ui.controller import JobControl
from ov_backend.ui.snapshot import Job
from tests.webui.conftest import engine_stats

F32 = Choices("CPU", "f32")


def job_control() -> JobControl:
    return JobControl(Job("precompile", total=2), threading.Event())


def prepared() -> dict[str, tuple[int, int]]:
    """Per network, how many graphs were captured or loaded, and how many compiled."""
    return {name: (stats["captures"] + stats["graph_hits"], stats["compiles"]) for name, stats in engine_stats().items()}


def prepare(sizes: list[tuple[int, int]], batch: int, control: JobControl) -> None:
    from ov_backend.webui.routes import controller

    assert controller.precompile is not None
    controller.precompile(sizes, batch, F32, control)


def test_generations_of_precompiled_sizes_compile_nothing(host: SimpleNamespace, compare: Any) -> None:
    control = job_control()
    prepare([(40, 32), (32, 48)], 2, control)
    assert control.job.done == 2
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
