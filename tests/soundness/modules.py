"""All modules that are mutated, by name."""

from __future__ import annotations

from tests.soundness import nasty_code, nasty_state, nasty_values
from tests.soundness.case import Builder, Case
from tests.soundness.nasty import NASTY
from tests.soundness.real import REAL, missing

#: Importing them fills the table.
SMALL = (nasty_code, nasty_state, nasty_values)
BUILDERS: dict[str, Builder] = {**NASTY, **REAL}


def names() -> list[str]:
    """Those whose packages are installed here."""
    return [name for name in BUILDERS if not missing(name)]


def build(name: str) -> Case:
    """One of the cases, built anew."""
    return BUILDERS[name]()
