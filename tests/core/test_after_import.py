"""What waits for the import of a module runs once, after it, and leaves no trace in the import system."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from ov_backend.core.after_import import after_import


@pytest.fixture
def name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module that can be imported."""
    (tmp_path / "waited_for.py").write_text("done = []\nvalue = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "waited_for", raising=False)
    return "waited_for"


def test_it_runs_once_after_the_import_and_the_module_is_an_ordinary_one(name: str) -> None:
    finders, values = list(sys.meta_path), []
    after_import(name, lambda: values.append(sys.modules[name].value))
    assert values == []
    module = importlib.import_module(name)
    importlib.reload(module)
    assert values == [1]
    assert sys.meta_path == finders
    assert "exec_module" not in vars(module.__spec__.loader)


def test_it_runs_at_once_where_the_module_is_imported(name: str) -> None:
    importlib.import_module(name)
    values: list[int] = []
    after_import(name, lambda: values.append(1))
    assert values == [1]


def test_a_module_whose_import_fails_is_waited_for(name: str, tmp_path: Path) -> None:
    (tmp_path / "waited_for.py").write_text("1 / 0")
    values: list[int] = []
    after_import(name, lambda: values.append(1))
    with pytest.raises(ZeroDivisionError):
        importlib.import_module(name)
    (tmp_path / "waited_for.py").write_text("done = []  # now it works")
    importlib.import_module(name)
    assert values == [1]


def test_several_wait_for_one_module(name: str) -> None:
    values: list[int] = []
    after_import(name, lambda: values.append(1))
    after_import(name, lambda: values.append(2))
    importlib.import_module(name)
    assert sorted(values) == [1, 2]
    assert not [finder for finder in sys.meta_path if type(finder).__module__ == "ov_backend.core.after_import"]


def test_a_module_that_is_not_there_is_missing_as_ever() -> None:
    after_import("no_such_module", lambda: None)
    try:
        with pytest.raises(ModuleNotFoundError, match="no_such_module"):
            importlib.import_module("no_such_module")
    finally:
        sys.meta_path[:] = [each for each in sys.meta_path if type(each).__module__ != "ov_backend.core.after_import"]
