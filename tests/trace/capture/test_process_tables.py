"""What an import puts into ``sys.modules`` during a trace stays there, and nothing else does."""

from __future__ import annotations

import importlib
import importlib.machinery
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from ov_backend.trace.capture.process_tables import ProcessTables

#: torch.backends.opt_einsum does this.
REPLACES_ITSELF = """
import sys, types
class Replaced(types.ModuleType):
    scale = 2.0
sys.modules[__name__] = Replaced(__name__)
"""


@pytest.fixture
def tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ProcessTables:
    (tmp_path / "replaces_itself.py").write_text(REPLACES_ITSELF)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(sys.modules, "replaces_itself", sys)
    del sys.modules["replaces_itself"]  # monkeypatch puts back that there was none
    return ProcessTables()


def test_a_module_that_puts_another_object_in_its_place_is_an_import(tables: ProcessTables) -> None:
    module = importlib.import_module("replaces_itself")
    assert not tables.put_back()
    assert sys.modules["replaces_itself"] is module


def test_what_a_package_that_replaces_itself_puts_there_stays(tables: ProcessTables) -> None:
    importlib.import_module("replaces_itself")
    sys.modules["replaces_itself.moves"] = sys
    assert not tables.put_back()
    assert sys.modules.pop("replaces_itself.moves") is sys


def test_an_object_of_another_class_is_put_there_by_the_forward(tables: ProcessTables) -> None:
    sys.modules["replaces_itself"] = types.ModuleType("replaces_itself")
    assert tables.put_back()
    assert "replaces_itself" not in sys.modules


def test_an_object_of_an_older_class_is_put_there_by_the_forward(tables: ProcessTables) -> None:
    older = type("Older", (types.ModuleType,), {"__module__": "replaces_itself"})  # as of a script outside sys.modules
    tables = ProcessTables()
    sys.modules["replaces_itself"] = older("replaces_itself")
    assert tables.put_back()
    assert "replaces_itself" not in sys.modules


def test_a_module_that_is_there_already_is_replaced_by_the_forward(tables: ProcessTables) -> None:
    module = importlib.import_module("replaces_itself")
    tables = ProcessTables()
    sys.modules["replaces_itself"] = type(module)("replaces_itself")
    assert tables.put_back()
    assert sys.modules["replaces_itself"] is module


def test_a_module_that_another_thread_was_importing_may_replace_itself(tables: ProcessTables) -> None:
    half = types.ModuleType("replaces_itself")
    spec: Any = importlib.machinery.ModuleSpec("replaces_itself", None)
    spec._initializing = True  # Python's own mark
    half.__spec__ = spec
    sys.modules["replaces_itself"] = half
    tables = ProcessTables()
    whole = sys.modules["replaces_itself"] = types.ModuleType("whole")
    assert not tables.put_back()
    assert sys.modules["replaces_itself"] is whole
