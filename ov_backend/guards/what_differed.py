"""All that a walk has met, in its order: it makes the fingerprint, and tells what differs first from an earlier walk."""

from __future__ import annotations

import bisect
import hashlib
import json
import re
from collections.abc import Sequence
from typing import Any

_DIGEST = re.compile(r"([0-9a-f]{8})[0-9a-f]{24,}")
_SEPARATOR = re.compile(r"[\s,;({\[]")
#: The most characters of a value that are shown.
_MAX_SHOWN = 60


class Description:
    """A list of texts, and the paths at which they were found."""

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._starts: list[int] = []
        self._paths: list[str] = []

    def begin(self, path: str) -> str:
        """What is added from now on was found at this path; returns the path before."""
        before = self._paths[-1] if self._paths else ""
        self._starts.append(len(self._texts))
        self._paths.append(path)
        return before

    def add(self, *parts: object) -> None:
        """Add the texts of some objects."""
        self._texts += map(str, parts)

    def fingerprint(self) -> str:
        """A digest of everything."""
        return hashlib.sha256("\0".join(self._texts).encode("utf-8", "surrogatepass")).hexdigest()

    def first_difference(self, before: Description) -> str:
        """What differs first from an earlier description, with both values where there are any; "" if nothing does."""
        index = _common(self._texts, before._texts)
        if index == len(self._texts) == len(before._texts):
            return ""
        (path, now), (earlier, was) = self._at(index), before._at(index)
        if path not in before._paths:
            return f"{_shown(path)} is new"
        if earlier not in self._paths:
            return f"{_shown(earlier)} is gone"
        return f"{_shown(path)} {in_words(was, now)}"

    def _at(self, index: int) -> tuple[str, str]:
        """The path at an index, and the texts that were found there from the index on."""
        place = bisect.bisect_right(self._starts, index)
        end = self._starts[place] if place < len(self._starts) else len(self._texts)
        return (self._paths[place - 1] if place else ""), " ".join(self._texts[index:end])


def _shown(path: str) -> str:
    return path.replace("!", ".").lstrip(".") or "the module"


def in_words(was: str, now: str) -> str:
    """How one text became another, without what both begin with: "1.0 -> 0.5"."""
    start = max((found.end() for found in _SEPARATOR.finditer(was[: _common(was, now)])), default=0)
    return " -> ".join(_DIGEST.sub(r"\1", text[start:])[:_MAX_SHOWN] or "nothing" for text in (was, now))


def _common(first: Sequence[str], second: Sequence[str]) -> int:
    """With how many equal items both begin."""
    pairs = enumerate(zip(first, second))
    return next((i for i, (one, other) in pairs if one != other), min(len(first), len(second)))


def argument_in_words(was: str, now: str) -> str:
    """Which argument differs between the static parts of two signatures, and how."""
    (earlier, modes), (later, modes_now) = map(_arguments, (was, now))
    for name in [*later, *earlier]:
        if earlier.get(name) != later.get(name):
            values = (each.get(name, {}) for each in (earlier, later))
            return f"{name} {in_words(*(str(value.get('value', value)) for value in values))}"
    return in_words(modes, modes_now)


def _arguments(statics: str) -> tuple[dict[str, Any], str]:
    """The arguments' descriptions by their names, and the modes behind them; a signature that was stored may be cut off."""
    try:
        arguments, end = json.JSONDecoder().raw_decode(statics)
    except ValueError:
        return {}, statics
    known = isinstance(arguments, dict) and all(isinstance(each, dict) for each in arguments.values())
    return (arguments, statics[end:]) if known else ({}, statics)
