"""The trial of a recipe for int8: some calls whose results are known are computed with it, and what is not needed is evicted."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ov_backend.engine.request import CompiledEntry
from ov_backend.engine.resources import Resources
from ov_backend.int8.recipe import Recipe


def tried(resources: Resources, name: str, recipe: Recipe, errors: Callable[[], Sequence[float] | None]) -> Recipe | None:
    """A recipe with its error, and refused if that is too large.

    Args:
        resources: of the engine.
        name: of the network.
        recipe: the candidate.
        errors: computes calls with it and returns the relative error of each; None if the weights are another checkpoint's by
            now, and then there is no result.
    """
    compiled = resources.compiled
    own = f"int8 {recipe.digest}"
    compiled.evict(lambda key, entry: entry.network == name and _is_of_earlier_trials(entry, own))
    if not recipe.ranges:
        return recipe.refuse("no layer of it can be computed in 8 bits")
    before = set(compiled)
    values = errors()
    if values is None:
        return None
    result = recipe.judge(values)
    compiled.evict(lambda key, entry: entry.network == name and _is_unneeded(entry, own, key in before, bool(result.refused)))
    return result


def _is_of_earlier_trials(entry: CompiledEntry, own: str) -> bool:
    return "observing" in entry.form or (entry.is_unused_int8 and entry.form != own)


def _is_unneeded(entry: CompiledEntry, own: str, was_there: bool, is_refused: bool) -> bool:
    """A form in 8 bits that is refused, or the device's own form that was compiled for the comparison alone."""
    if is_refused:
        return entry.form == own or (entry.form.startswith("int8") and not was_there)
    return not entry.form and not was_there
