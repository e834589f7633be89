"""Where recipes lie on disk: beside the graphs. It needs neither PyTorch nor OpenVINO, so ``cache clear`` answers at once."""

from __future__ import annotations

from pathlib import Path

from ov_backend.store.entry_file import Kind
from ov_backend.store.store import GraphStore

RECIPES = Kind(".ovrecipe", "ov_backend recipe 1", 16 << 20, packed=True)
#: Bound of all recipes on disk.
_MAX_BYTES = 64 << 20


def recipe_store(graphs: Path) -> GraphStore:
    """The store of recipes, a folder inside that of the graph store."""
    return GraphStore(graphs / "recipes", _MAX_BYTES, RECIPES)
