"""What ``make test`` leaves out exists, and ``make test-full`` runs it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.extent import SLOW, SMOKE, is_slow

TESTS = Path(__file__).parent


def exists(test: str) -> bool:
    path, _, name = test.partition("::")
    return (TESTS / path).exists() and (not name or f"def {name}" in (TESTS / path).read_text(encoding="utf-8"))


@pytest.mark.parametrize("test", SLOW)
def test_what_is_slow_exists(test: str) -> None:
    assert exists(test)


@pytest.mark.parametrize("test", SMOKE)
def test_a_smoke_test_exists_in_what_is_slow(test: str) -> None:
    assert exists(test)
    file, _, name = test.partition("::")
    assert not is_slow(Path(file), name)
    assert not name or is_slow(Path(file), "test_of_another_name")


def test_the_rest_is_not_slow() -> None:
    assert is_slow(Path("hosts/webui/test_int8.py"), "test_a")
    assert not is_slow(Path("engine/test_lookup.py"), "test_a")
