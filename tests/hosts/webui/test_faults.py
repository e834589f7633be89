"""Faults planted into a generation of the stand-in WebUI: the picture is right, a sentence is there, the next one is fine."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tests.engine.test_faults import PYTORCH, STORE
from tests.helpers.extent import some
from tests.hosts.webui.conftest import ALL, TITLE, arguments, largest_difference, ran, ran_text

NAMES = ["OpenVINO raises at compile", "memory is short in a compile", "conversion fails", "a compile ends its thread"]
DISKS = ["the disk is full when an entry is packed", "the folder is read-only", "there is no temporary folder"]


def fresh_engine() -> None:
    from ov_backend.hosts.webui.session import session

    session.clear()


@pytest.fixture(autouse=True)
def _own_engine(host: SimpleNamespace) -> None:
    """Refusals are remembered; no other test may find those planted here."""
    fresh_engine()


@pytest.mark.parametrize("name", some(["OpenVINO raises at compile"], NAMES))
def test_a_generation_that_openvino_cannot_make_is_pytorchs(
    host: SimpleNamespace, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant, words = PYTORCH[name]
    off = host.processing.generate(prompt="a fault", width=40, height=40)
    if name == "conversion fails":  # what is stored needs no conversion
        monkeypatch.setattr("ov_backend.store.store.GraphStore.get", lambda store, key: None)
    with monkeypatch.context() as planted:
        plant(planted)
        on = host.processing.generate(TITLE, arguments(), prompt="a fault", width=40, height=40)
    assert largest_difference(off, on) == 0
    assert words in on.comments
    fresh_engine()
    again = host.processing.generate(TITLE, arguments(), prompt="a fault", width=40, height=40)
    assert ran(again) == ran_text(*ALL)
    assert largest_difference(off, again) <= 1


_EVERY_THIRD = """
def every_third(graph, *args):
    calls.append(graph)
    if len(calls) % 3 == 0:
        raise RuntimeError("planted at infer")
    return real(graph, *args)
"""


def test_a_call_that_openvino_fails_at_is_pytorchs_and_the_next_generation_is_openvinos(
    host: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ov_backend.model.runtime.compiled_graph import CompiledGraph

    off = host.processing.generate(prompt="a fault")
    host.processing.generate(TITLE, arguments(), prompt="a fault")
    real, calls = CompiledGraph._run, []

    of_openvino = {"__name__": "openvino.planted", "real": real, "calls": calls}
    exec(_EVERY_THIRD, of_openvino)  # what another module raises is the program's own
    with monkeypatch.context() as planted:
        planted.setattr(CompiledGraph, "_run", of_openvino["every_third"])
        on = host.processing.generate(TITLE, arguments(), prompt="a fault")
    assert len(calls) >= 3
    assert largest_difference(off, on) <= 1
    assert "planted at infer" in on.comments
    again = host.processing.generate(TITLE, arguments(), prompt="a fault")
    assert ran(again) == ran_text(*ALL)
    assert "planted" not in again.comments


@pytest.mark.parametrize("name", some(DISKS[:1], DISKS))
def test_a_disk_that_takes_nothing_costs_no_picture(
    host: SimpleNamespace, name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    off = host.processing.generate(prompt="a fault", width=48, height=40)
    with monkeypatch.context() as planted:
        STORE[name][0](planted)
        planted.setattr("ov_backend.store.store.GraphStore.get", lambda store, key: None)
        on = host.processing.generate(TITLE, arguments(), prompt="a fault", width=48, height=40)
    assert ran(on) == ran_text(*ALL)
    assert largest_difference(off, on) <= 1
    assert STORE[name][1] in caplog.text
