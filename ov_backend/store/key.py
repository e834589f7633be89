"""The key of a stored graph: the hash of its text and of other named ingredients.

Weights are no ingredient, because graphs are stored without them. The design follows jax's ``cache_key``: one function and named
ingredients.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

#: Increased whenever capture, lowering or conversion produce other graphs, so that older entries are missed.
LOWERING_VERSION = 23


def cache_key(
    *,
    text: str,
    call: object,
    slots: object,
    settings: Mapping[str, Any],
    versions: Mapping[str, str],
    extra: str = "",
) -> str:
    """The key under which a graph is stored: 32 hexadecimal digits.

    ``text`` is the graph's, with arguments and edges; ``call`` says names, shapes and dtypes of the inputs, and what a call
    returns, and ``slots`` those of the weights (JSON-able). ``settings`` are those that affect the graph, ``versions`` of
    libraries that it depends on, and ``extra`` is anything else.
    """
    parts = {
        "text": text,
        "call": _text(call),
        "slots": _text(slots),
        "settings": _text(dict(settings)),
        "versions": _text(dict(versions)),
        "lowering": str(LOWERING_VERSION),
        "extra": extra,
    }
    return name_of(*((name, _digest(text)) for name, text in parts.items()))


def name_of(*parts: object) -> str:
    """A name for what has these parts (JSON-able): 32 hexadecimal digits."""
    return _digest(_text(parts))


def _text(value: object) -> str:
    return json.dumps(value, sort_keys=True, default=str, separators=(",", ":"))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]
