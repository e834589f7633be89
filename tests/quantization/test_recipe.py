"""A recipe comes back from its file as it was, and a forged one is refused."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ov_backend.quantization.recipe import Recipe
from ov_backend.quantization.recipes import Recipes
from ov_backend.transformations.low_precision import Range

SHARED = Range(np.float32([-1, -2]), np.float32([3, 0]))
RECIPE = Recipe("UNet", "c0" * 16, 20, 0.01, "", {"a": SHARED, "b": SHARED, "c": Range(np.float32([0]), np.float32([1]))})


def header(**changes: Any) -> dict[str, bytes]:
    files = RECIPE.as_files()
    return {**files, "recipe.json": json.dumps({**json.loads(files["recipe.json"]), **changes}).encode()}


def test_a_recipe_comes_back_as_it_was() -> None:
    back = Recipe.from_files(RECIPE.as_files())
    assert (back.network, back.checkpoint, back.calls, back.error, back.refused) == ("UNet", "c0" * 16, 20, 0.01, "")
    assert back.digest == RECIPE.digest
    assert np.array_equal(back.ranges["b"].low, SHARED.low)
    assert back.ranges.keys() == RECIPE.ranges.keys()


def test_layers_with_the_same_input_store_one_range() -> None:
    assert len(RECIPE.as_files()["ranges.bin"]) == 4 * (2 * 2 + 2 * 1)


@pytest.mark.parametrize(
    "changes",
    [
        {"version": 2},
        {"network": 1},
        {"checkpoint": "x" * 2000},
        {"calls": 0},
        {"calls": True},
        {"error": float("nan")},
        {"error": -1},
        {"error": 0.5},
        {"layers": {}},
        {"layers": [[["a"], 1 << 40]]},
        {"layers": [[["a"], 2], [["a"], 1]]},
        {"layers": [[["a"], 2]]},
        {"layers": [[[7], 2], [["c"], 1]]},
        {"layers": [7]},
        {"layers": None},
    ],
    ids=str,
)
def test_a_forged_header_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        Recipe.from_files(header(**changes))


@pytest.mark.parametrize("values", [[np.nan], [np.inf], [5.0], []], ids=str)
def test_forged_numbers_are_refused(values: list[float]) -> None:
    files = RECIPE.as_files()
    with pytest.raises(ValueError):
        Recipe.from_files({**files, "ranges.bin": np.float32(values).tobytes() + files["ranges.bin"][4:]})


def test_missing_and_unreadable_members_are_refused() -> None:
    for files in ({}, {"recipe.json": b"{}"}, {"recipe.json": b"[" * 100_000, "ranges.bin": b""}):
        with pytest.raises(ValueError):
            Recipe.from_files(files)


def test_recipes_are_found_by_checkpoint_and_else_by_architecture(tmp_path: Path) -> None:
    architecture, recipes = "a0" * 16, Recipes()
    recipes.open(tmp_path)
    recipes.put(architecture, RECIPE)
    again = Recipes()
    again.open(tmp_path)
    assert again.get(architecture, "d0" * 16) is None
    found = again.of_architecture(architecture)
    assert found is not None
    assert found.digest == RECIPE.digest
    assert again.of_architecture("b0" * 16) is None


def test_a_recipe_in_the_place_of_another_is_removed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    recipes = Recipes()
    recipes.open(tmp_path)
    assert recipes.store is not None
    recipes.store.put("a0" * 16 + "d0" * 16, RECIPE.as_files())
    with caplog.at_level(logging.WARNING):
        assert recipes.get("a0" * 16, "d0" * 16) is None
    assert "belongs to another checkpoint" in caplog.text
    assert not recipes.store.entries()
