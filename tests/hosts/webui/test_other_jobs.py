"""Extras, interrogation and preprocessors: accelerated where every generation is."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.hosts.webui.conftest import engine_stats
from tests.hosts.webui.test_other_networks import Upscaler, long, upscaled

__all__ = ["long"]


@pytest.fixture
def jobs(host: SimpleNamespace, long: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """Modules of the WebUI with a job each, in one of which a network is called; Extras has a runner of scripts."""
    from ov_backend.hosts.webui.other_jobs import other_jobs

    network = Upscaler(seed=9)
    failing: list[Exception] = []

    class Runner:
        def run(self, picture: Any, args: Any) -> None:
            if failing:
                raise failing[0]
            picture.result = upscaled(network)

    class Interrogator:
        def interrogate(self, image: Any) -> Any:
            return upscaled(network)

    def run_postprocessing(*args: Any) -> Any:
        picture = SimpleNamespace(info={}, result=None)
        host.scripts.scripts_postproc.run(picture, args)
        return picture

    modules = {"postprocessing": {"run_postprocessing": run_postprocessing}, "interrogate": {"InterrogateModels": Interrogator}}
    for name, content in modules.items():
        module = types.ModuleType(f"modules.{name}")
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, f"modules.{name}", module)
    monkeypatch.setattr(host.scripts, "scripts_postproc", Runner(), raising=False)
    other_jobs.begin()
    host.shared.opts.openvino_precision = "f32"
    try:
        yield SimpleNamespace(
            network=network,
            failing=failing,
            extras=lambda: sys.modules["modules.postprocessing"].run_postprocessing(1),
            interrogate=lambda: Interrogator().interrogate(1),
        )
    finally:
        other_jobs.end()


def test_extras_runs_in_openvino_and_says_so(host: SimpleNamespace, jobs: SimpleNamespace) -> None:
    off = jobs.extras()
    assert off.info == {}
    host.shared.opts.openvino_always_on = True
    jobs.extras()
    on = jobs.extras()
    assert on.info["OpenVINO"].startswith("ran=Upscaler")
    assert engine_stats()["Upscaler"]["calls"] == 3
    np.testing.assert_allclose(on.result, off.result, atol=1e-5)


def test_interrogation_runs_in_openvino(host: SimpleNamespace, jobs: SimpleNamespace) -> None:
    off = jobs.interrogate()
    host.shared.opts.openvino_always_on = True
    jobs.interrogate()
    np.testing.assert_allclose(jobs.interrogate(), off, atol=1e-5)
    assert engine_stats()["Upscaler"]["calls"] == 3


def test_the_setting_switches_it_off(host: SimpleNamespace, jobs: SimpleNamespace) -> None:
    host.shared.opts.openvino_always_on, host.shared.opts.openvino_other_networks = True, False
    assert [jobs.extras().info for _ in range(2)] == [{}, {}]


def test_a_job_that_fails_leaves_nothing_behind(host: SimpleNamespace, jobs: SimpleNamespace) -> None:
    from ov_backend.hosts.webui.session import session

    host.shared.opts.openvino_always_on = True
    jobs.failing.append(ValueError("no picture"))
    with pytest.raises(ValueError, match="no picture"):
        jobs.extras()
    assert not session.status.generating
    jobs.failing.clear()
    jobs.extras()
    assert jobs.extras().info
