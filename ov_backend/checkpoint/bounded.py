"""Reads JSON and YAML of unknown origin with bounds on size, depth and growth, before anything is made of it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

#: The largest .yaml and .json beside a checkpoint; those of Stable Diffusion have 5 KB, a vocabulary has 1 MB.
MAX_YAML_BYTES, MAX_JSON_BYTES = 64 << 10, 2 << 20
MAX_DEPTH = 32
#: The most values and characters that a YAML document may have after its aliases are replaced by what they stand for.
MAX_EXPANDED = 1 << 20
#: The most tensors of a checkpoint, and the longest name and description of one.
MAX_TENSORS, MAX_NAME, MAX_ENTRY = 1 << 16, 512, 4096

_SPACE = re.compile(rb"[ \t\r\n]*")
_QUOTE_OR_BACKSLASH = re.compile(rb'["\\]')


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
    """Read JSON that is no deeper than :data:`MAX_DEPTH`.

    Raises:
        ValueError: it is no JSON, or deeper.
    """
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
                raise TooMuch(f"the alias {event.anchor!r} stands for nothing that is complete")
            total += sizes[event.anchor]
        if len(open_collections) > MAX_DEPTH:
            raise TooMuch(f"it is nested deeper than {MAX_DEPTH} levels")
        if total > MAX_EXPANDED:
            raise TooMuch("its aliases stand for too much")


def header_entries(text: bytes) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The tensors in a safetensors header, read one at a time, so that no more memory is used than for the result.

    Raises:
        ValueError: it is no such header, or has more or longer entries than any checkpoint.
    """
    at, count = _expect(text, b"{", 0), 0
    while not text.startswith(b"}", at):
        if count:
            at = _expect(text, b",", at)
        end = _end_of_string(text, at)
        if end - at > MAX_NAME:
            raise TooMuch("it has a longer name than any tensor")
        name = json.loads(text[at:end])
        at = _expect(text, b":", _skip(text, end))
        count += 1
        if count > MAX_TENSORS:
            raise TooMuch(f"it has more than {MAX_TENSORS} tensors")
        if name == "__metadata__":
            at = _skip(text, _end_of_metadata(text, at))
            continue
        end = text.find(b"}", at, at + MAX_ENTRY) + 1
        if not end:
            raise TooMuch("it describes a tensor in more words than needed")
        yield name, parse_json(text[at:end].decode("utf-8"))
        at = _skip(text, end)
    if _skip(text, at + 1) != len(text):
        raise ValueError("something follows its end")


def _skip(text: bytes, at: int) -> int:
    match = _SPACE.match(text, at)
    return match.end() if match else at


def _expect(text: bytes, mark: bytes, at: int) -> int:
    """The position after a mark and the space around it."""
    at = _skip(text, at)
    if not text.startswith(mark, at):
        raise ValueError(f"{mark.decode()} is missing at {at}")
    return _skip(text, at + 1)


def _end_of_string(text: bytes, at: int) -> int:
    """The position after a quoted string that begins at ``at``."""
    if not text.startswith(b'"', at):
        raise ValueError(f"a name is missing at {at}")
    at += 1
    while match := _QUOTE_OR_BACKSLASH.search(text, at):
        at = match.end()
        if match.group() == b'"':
            return at
        at += 1
    raise ValueError("a string has no end")


def _end_of_metadata(text: bytes, at: int) -> int:
    """The position after an object of strings, which is not read."""
    at, first = _expect(text, b"{", at), True
    while not text.startswith(b"}", at):
        at = at if first else _expect(text, b",", at)
        at = _expect(text, b":", _end_of_string(text, at))
        at, first = _skip(text, _end_of_string(text, at)), False
    return at + 1
