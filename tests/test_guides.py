"""Every test that docs/guides.md names exists, and every row of its tables has a test and a verdict."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "guides.md"
TEST_NAME = re.compile(r"`(?P<file>[a-z0-9_/]+)::(?P<test>test_[a-z0-9_]+)`")


def functions(path: Path) -> set[str]:
    """The names of all functions in a file; none where there is no such file."""
    if not path.is_file():
        return set()
    return {node.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef)}


def rows() -> list[list[str]]:
    """The cells of every row that names a test."""
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("| ") and "::" in line]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def test_every_test_named_in_the_table_exists() -> None:
    tests = TEST_NAME.findall(PAGE.read_text())
    assert len(tests) >= 50
    missing = [f"{file}::{test}" for file, test in tests if test not in functions(ROOT / "tests" / f"{file}.py")]
    assert not missing


def test_every_row_has_a_test_and_a_verdict_for_both_pin_sets() -> None:
    assert len(rows()) >= 30
    for row in rows():
        assert len(row) == 5, row
        assert TEST_NAME.search(row[2]), row
        assert all(verdict.startswith(("yes", "no", "-")) for verdict in row[3:]), row
