"""Reads JSON and YAML of unknown origin with bounds on size, depth and growth, before anything is made of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

#: The largest .yaml and .json beside a checkpoint; those of Stable Diffusion have 5 KB, a vocabulary has 1 MB.
MAX_YAML_BYTES, MAX_JSON_BYTES = 64 << 10, 2 << 20
MAX_DEPTH = 32
#: The most values and characters that a YAML document may have after its aliases are replaced by what they stand for.
MAX_EXPANDED = 1 << 20


class TooMuch(ValueError):
    """A document is larger, deeper or longer than any that is meant; the message says in which way."""


def read_text(path: Path, most: int) -> str:
    """The text of a small file.

    Raises:
        OSError: it cannot be read.
        ValueError: it is larger than ``most`` bytes, or no UTF-8.
    """
    with path.open("rb") as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise TooMuch(f"it is larger than {most >> 10} KiB")
    return data.decode("utf-8")


def parse_json(text: str) -> Any:
    """Read JSON that is no deeper than :data:`MAX_DEPTH`. Raises ValueError if it is no JSON, or deeper."""
    try:
        value = json.loads(text)
    except RecursionError:
        raise TooMuch(f"it is nested deeper than {MAX_DEPTH} levels") from None
    if _depth(value) > MAX_DEPTH:
        raise TooMuch(f"it is nested deeper than {MAX_DEPTH} levels")
    return value


def _depth(value: Any) -> int:
    deepest, pending = 0, [(value, 1)]
    while pending:
        each, depth = pending.pop()
        deepest = max(deepest, depth)
        items = each.values() if isinstance(each, dict) else each if isinstance(each, list) else ()
        if depth <= MAX_DEPTH:
            pending += [(item, depth + 1) for item in items if isinstance(item, (dict, list))]
    return deepest


def parse_yaml(text: str) -> Any:
    """Read YAML that is no deeper than :data:`MAX_DEPTH` and grows no larger than :data:`MAX_EXPANDED`.

    Raises:
        ValueError: it is no YAML, deeper, or larger.
    """
    import yaml

    try:
        _check_growth(yaml.parse(text, Loader=yaml.SafeLoader))
        return yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError, LookupError, TypeError, AttributeError, ArithmeticError) as error:
        raise ValueError("it is no YAML") from error
    except TooMuch:
        raise
    except ValueError as error:  # of int() and datetime()
        raise TooMuch("it holds a number of thousands of digits, or a date that does not exist") from error


def _check_growth(events: Iterator[Any]) -> None:
    """Add up the sizes of all values in the order of the text, an alias with the size of what it stands for."""
    import yaml

    sizes: dict[str, int] = {}
    open_collections: list[tuple[str | None, int]] = []
    total = 0
    for event in events:
        if isinstance(event, yaml.CollectionStartEvent):
            open_collections.append((event.anchor, total))
            total += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, before = open_collections.pop()
            if anchor:
                sizes[anchor] = total - before
        elif isinstance(event, yaml.ScalarEvent):
            size = 1 + len(event.value)
            total += size
            if event.anchor:
                sizes[event.anchor] = size
        elif isinstance(event, yaml.AliasEvent):
            if event.anchor not in sizes:  # of a collection that is still open: it would hold itself
                raise TooMuch(f"the alias {event.anchor[:60]!r} stands for nothing that is complete")
            total += sizes[event.anchor]
        if len(open_collections) > MAX_DEPTH:
            raise TooMuch(f"it is nested deeper than {MAX_DEPTH} levels")
        if total > MAX_EXPANDED:
            raise TooMuch("its aliases stand for too much")
