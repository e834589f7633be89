"""The key of a stored graph: a list of named ingredients, hashed.

Weights are never among them, for none are stored. Two keys can be held against each other with :func:`differing_ingredients`,
so that a miss always has a name. The layout follows jax's ``cache_key``: one function, named ingredients.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

#: Raised whenever capture, lowering or conversion change what they produce: entries made before are then missed.
LOWERING_VERSION = 4


@dataclass(frozen=True)
class CacheKey:
    """A key and the hash of each of its ingredients."""

    digest: str
    ingredients: tuple[tuple[str, str], ...]

    def __str__(self) -> str:
        return self.digest


def cache_key(
    *,
    code: str,
    inputs: object,
    slots: object,
    settings: Mapping[str, Any],
    versions: Mapping[str, str],
    extra: str = "",
) -> CacheKey:
    """The key under which a graph is stored.

    Args:
        code: what determines the graph: the graph's text with arguments and edges, or a module's fingerprint.
        inputs: names, shapes, dtypes and static values of the inputs (JSON-able).
        slots: names, shapes and dtypes of the weights (JSON-able).
        settings: the settings that affect the graph, see :meth:`Settings.affecting`.
        versions: of torch, OpenVINO and whatever else took part in making the graph.
        extra: anything else the caller knows to matter.
    """
    parts = {
        "code": code,
        "inputs": _text(inputs),
        "slots": _text(slots),
        "settings": _text(dict(settings)),
        "versions": _text(dict(versions)),
        "lowering": str(LOWERING_VERSION),
        "extra": extra,
    }
    ingredients = tuple((name, _digest(text)) for name, text in parts.items())
    return CacheKey(_digest(_text(ingredients)), ingredients)


def differing_ingredients(a: CacheKey, b: CacheKey) -> list[str]:
    """The names of the ingredients in which two keys differ; empty when they are the same key."""
    left, right = dict(a.ingredients), dict(b.ingredients)
    return [name for name in left if left[name] != right.get(name)]


def _text(value: object) -> str:
    return json.dumps(value, sort_keys=True, default=str, separators=(",", ":"))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]
