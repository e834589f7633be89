"""What an import puts into ``sys.modules`` during a trace stays there, and nothing else does."""

from __future__ import annotations

import importlib
import sys
import types
from pathlib import Path

import pytest

from ov_backend.capture.process_tables import ProcessTables

#: torch.backends.opt_einsum does this.
REPLACES_ITSELF = """
import sys, types
class Replaced(types.ModuleType):
    scale = 2.0
sys.modules[__name__] = Replaced(__name__)
"""


@pytest.mark.parametrize("imported", [True, False])
def test_a_module_that_puts_another_object_in_its_place_is_an_import(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, imported: bool
) -> None:
    (tmp_path / "replaces_itself.py").write_text(REPLACES_ITSELF)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(sys.modules, "replaces_itself", sys)
    del sys.modules["replaces_itself"]  # monkeypatch puts back that there was none
    finders, tables = list(sys.meta_path), ProcessTables()
    with tables.noting_imports():
        if imported:
            importlib.import_module("replaces_itself")
        else:
            sys.modules["replaces_itself"] = types.ModuleType("replaces_itself")
    assert sys.meta_path == finders
    assert tables.put_back() is not imported
    assert ("replaces_itself" in sys.modules) is imported
