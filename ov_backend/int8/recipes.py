"""All recipes of an engine: in memory, and on disk beside the graphs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ov_backend.int8.recipe import Recipe
from ov_backend.store.store import GraphStore, recipe_store


class Recipes:
    """Recipes by architecture and checkpoint.

    Attributes:
        store: on disk, or None.
    """

    def __init__(self) -> None:
        self.store: GraphStore | None = None
        self._known: dict[tuple[str, str], Recipe | None] = {}

    def open(self, graphs: Path | None) -> None:
        """Keep recipes on disk in a folder inside that of the graphs; None keeps them in memory only."""
        store = None if graphs is None else recipe_store(graphs)
        if getattr(store, "folder", None) != getattr(self.store, "folder", None):
            self.store = store
            self._known = {key: recipe for key, recipe in self._known.items() if recipe is not None}

    def get(self, architecture: str, checkpoint: str) -> Recipe | None:
        """The recipe of a checkpoint, or None."""
        key = (architecture, checkpoint)
        if key not in self._known:
            self._known[key] = self._read(architecture, checkpoint)
        return self._known[key]

    def put(self, architecture: str, recipe: Recipe) -> None:
        """Keep a recipe under its checkpoint; on disk as well where it is used: another picture, or more memory, may give one."""
        self._known[architecture, recipe.checkpoint] = recipe
        if not recipe.refused and self.store is not None:
            self.store.put(architecture + recipe.checkpoint, recipe.as_files())

    def clear(self) -> None:
        """Forget what is in memory; what is on disk is read again."""
        self._known.clear()

    def _read(self, architecture: str, checkpoint: str) -> Recipe | None:
        def parse(files: Mapping[str, bytes]) -> Recipe:
            recipe = Recipe.from_files(files)
            if recipe.checkpoint != checkpoint:
                raise ValueError("it belongs to another checkpoint")
            return recipe

        return None if self.store is None else self.store.read(architecture + checkpoint, parse)
