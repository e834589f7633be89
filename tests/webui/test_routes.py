"""The panel's "Precompile" in the stand-in host: afterwards a generation of that size makes nothing, and is right."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from ov_backend.errors import Interrupted
from ov_backend.ui.choices import Choices
from ov_backend.ui.controller import Control, Job
from tests.webui.test_generation import statistics

OURS = Choices("CPU", "f32")


def control() -> Control:
    return Control(Job("precompile", total=2), threading.Event())


def made() -> dict[str, tuple[int, int]]:
    return {name: (values["captures"] + values["graph_hits"], values["compiles"]) for name, values in statistics().items()}


def prepare(sizes: list[tuple[int, int]], batch: int, given: Control) -> None:
    from ov_backend.webui.routes import controller

    assert controller.precompile is not None
    controller.precompile(sizes, batch, OURS, given)


def test_generations_of_precompiled_sizes_make_nothing(host: SimpleNamespace, compare: Any) -> None:
    given = control()
    prepare([(40, 32), (32, 48)], 2, given)
    assert given.job.done == 2
    counts = made()
    assert counts["unet"][1] >= 2
    compare(prompt="a cat", negative_prompt="blurry", width=40, height=32, batch_size=2)
    compare(prompt="a dog", width=32, height=48, batch_size=2)
    assert made() == counts
    assert host.shared.state.job == ""
    assert not host.shared.cmd_opts.no_prompt_history


def test_it_can_be_called_off(host: SimpleNamespace, compare: Any) -> None:
    given = control()
    given.event.set()
    with pytest.raises(Interrupted):
        prepare([(56, 32)], 1, given)
    assert given.job.done == 0
    compare(prompt="a cat")
