"""install.py and the oldest OpenVINO: nothing is upgraded unasked, and nobody keeps one that is too old without knowing."""

from __future__ import annotations

import importlib.metadata
import re
import runpy
import sys
from pathlib import Path
from types import ModuleType

import pytest

from ov_backend import version
from ov_backend.core import telemetry
from ov_backend.ui import panel
from ov_backend.version import OLDEST_OPENVINO, openvino_problem

ROOT = Path(__file__).parents[1]


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What install.py asked the WebUI to run."""
    run: list[str] = []
    launch = ModuleType("launch")
    launch.run_pip = lambda command, what: run.append(command)  # type: ignore[attr-defined]
    launch.is_installed = lambda name: True  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "launch", launch)
    return run


def installed(monkeypatch: pytest.MonkeyPatch, text: str | None) -> None:
    def find(name: str) -> str:
        if text is None:
            raise importlib.metadata.PackageNotFoundError(name)
        return text

    monkeypatch.setattr(importlib.metadata, "version", find)


def test_openvino_is_installed_where_it_is_not(commands: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, None)
    runpy.run_path(str(ROOT / "install.py"))
    assert commands == ['install "openvino>=2026.1"', "install xxhash"]


def test_a_machine_that_is_offline_starts_without_the_faster_hash(
    commands: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(command: str, what: str) -> None:
        commands.append(command)
        raise RuntimeError("Couldn't install xxhash")

    def find(name: str) -> str:
        if name == "xxhash":
            raise importlib.metadata.PackageNotFoundError(name)
        return "2026.4.1"

    monkeypatch.setattr(sys.modules["launch"], "run_pip", fail)
    monkeypatch.setattr(importlib.metadata, "version", find)
    runpy.run_path(str(ROOT / "install.py"))
    assert commands == ["install xxhash"]
    assert capsys.readouterr().out.startswith("xxhash could not be installed")


@pytest.mark.parametrize("text", ["2024.6.0", "2025.4.1", "2026.0.0", "2023.0.0.dev20230601"])
def test_one_that_is_too_old_is_neither_kept_silently_nor_upgraded(
    commands: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    installed(monkeypatch, text)
    runpy.run_path(str(ROOT / "install.py"))
    assert commands == []
    assert 'pip install "openvino>=2026.1"' in capsys.readouterr().out
    choices, message = panel.device_choices()
    assert choices == ["CPU"]
    assert text in message
    assert "pip install 'openvino>=2026.1'" in message
    with pytest.raises(ImportError, match=r"2026\.1 or newer is needed"):
        telemetry.import_openvino()


@pytest.mark.parametrize("text", ["2026.1.0", "2026.4.1", "2027.0.0", "2026.2.0.dev20260601"])
def test_a_new_one_stays(commands: list[str], monkeypatch: pytest.MonkeyPatch, text: str,
    capsys: pytest.CaptureFixture[str]) -> None:
    installed(monkeypatch, text)
    runpy.run_path(str(ROOT / "install.py"))
    assert (commands, capsys.readouterr().out, openvino_problem()) == ([], "", "")


def test_the_bound_is_the_same_everywhere() -> None:
    text = ".".join(map(str, OLDEST_OPENVINO))
    assert f'"openvino>={text}"' in (ROOT / "pyproject.toml").read_text()
    assert re.search(r"OLDEST = \((\d+), (\d+)\)", (ROOT / "install.py").read_text()).groups() == tuple(map(str,
        OLDEST_OPENVINO))  # type: ignore[union-attr]
    assert version.openvino_problem() == ""
