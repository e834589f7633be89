"""A recipe comes back from its file as it was, and a forged one is refused."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from ov_backend.int8.recipe import VERSION, Recipe
from ov_backend.int8.recipes import Recipes
from ov_backend.model.transformations.quantize import Range
from ov_backend.store.entry_file import DAMAGE

RECIPE = Recipe("UNet", "c0" * 16, 20, 1, {"a": Range(-1.25, 3.0), "b": Range(0.0, 1e-7)}, 0.01)


def files(**changes: Any) -> dict[str, bytes]:
    content = json.loads(RECIPE.as_files()["recipe.json"])
    return {"recipe.json": json.dumps({**content, **changes}).encode()}


def test_a_recipe_comes_back_as_it_was() -> None:
    assert Recipe.from_files(files()) == RECIPE
    assert Recipe.from_files(files()).digest == RECIPE.digest


def test_the_digest_names_the_ranges_alone() -> None:
    assert Recipe.from_files(files(error=0.02)).digest == RECIPE.digest
    assert Recipe.from_files(files(ranges={"a": [-1.25, 3.5], "b": [0.0, 1e-7]})).digest != RECIPE.digest


@pytest.mark.parametrize(
    "changes",
    [
        {"version": VERSION + 1},
        {"version": VERSION - 1},
        {"network": 1},
        {"checkpoint": "x" * 2000},
        {"calls": 0},
        {"calls": True},
        {"pictures": 0},
        {"error": float("nan")},
        {"error": -1},
        {"error": 0.5},
        {"error": "0.01"},
        {"ranges": []},
        {"ranges": {"a": [1.0]}},
        {"ranges": {"a": [2.0, 1.0]}},
        {"ranges": {"a": [float("nan"), 1.0]}},
        {"ranges": {"a": [0.0, float("inf")]}},
        {"ranges": {"a": [0, 1 << 400]}},
        {"ranges": {"a": [0.0, 1e300]}},
        {"ranges": {"a": [-3.3e38, 1.0]}},
        {"ranges": {"a": [-2.8e38, 2.8e38]}},
        {"ranges": {}},
        {"ranges": {"a": ["0", "1"]}},
        {"ranges": {"a" * 2000: [0.0, 1.0]}},
        {"ranges": {"a": None}},
    ],
    ids=lambda changes: str(changes)[:60],
)
def test_a_forged_recipe_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(DAMAGE):
        Recipe.from_files(files(**changes))


def test_missing_and_unreadable_members_are_refused() -> None:
    for forged in ({}, {"recipe.json": b"{}"}, {"recipe.json": b"[" * 100_000}, {"recipe.json": b"\xff"}):
        with pytest.raises(DAMAGE):
            Recipe.from_files(forged)


def test_recipes_are_found_by_architecture_and_checkpoint(tmp_path: Path) -> None:
    architecture, recipes = "a0" * 16, Recipes()
    recipes.open(tmp_path)
    recipes.put(architecture, RECIPE)
    again = Recipes()
    again.open(tmp_path)
    assert again.get(architecture, "d0" * 16) is None
    found = again.get(architecture, RECIPE.checkpoint)
    assert found is not None
    assert found.digest == RECIPE.digest
    assert again.get("b0" * 16, RECIPE.checkpoint) is None


def test_a_recipe_in_the_place_of_another_is_removed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    recipes = Recipes()
    recipes.open(tmp_path)
    assert recipes.store is not None
    recipes.store.put("a0" * 16 + "d0" * 16, RECIPE.as_files())
    with caplog.at_level(logging.WARNING):
        assert recipes.get("a0" * 16, "d0" * 16) is None
    assert "belongs to another checkpoint" in caplog.text
    assert not recipes.store.entries()


def test_an_error_that_is_no_number_refuses_and_is_not_told_as_one() -> None:
    for errors in ([], [0.01, float("nan")], [float("inf")]):
        refused = RECIPE.judge(errors)
        assert refused.refused
        assert "%" not in refused.refused
    assert not RECIPE.judge([0.01]).refused
    assert "off by 4.0 %, more than 3.5 %" in RECIPE.judge([0.04]).refused
