"""The table of what the guides describe names its tests; they have to be there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
TABLE = ROOT / "docs" / "guides.md"
NAMED = re.compile(r"`(?P<file>[a-z0-9_/]+)::(?P<test>test_[a-z0-9_]+)`")


def functions(path: Path) -> set[str]:
    return {node.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef)}


def rows() -> list[list[str]]:
    lines = [line for line in TABLE.read_text().splitlines() if line.startswith("| ") and not line.startswith("|--")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines if "::" in line]


def test_every_test_named_in_the_table_exists() -> None:
    named = NAMED.findall(TABLE.read_text())
    assert len(named) >= 50
    missing = [f"{file}::{test}" for file, test in named if test not in functions(ROOT / "tests" / f"{file}.py")]
    assert not missing


def test_every_row_has_a_test_and_a_verdict_for_both_pin_sets() -> None:
    found = rows()
    assert len(found) >= 30
    for row in found:
        assert len(row) == 5, row
        assert NAMED.search(row[2]), row
        assert all(verdict.startswith(("yes", "no", "-")) for verdict in row[3:]), row
