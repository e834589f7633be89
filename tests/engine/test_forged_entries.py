"""Entries of the store with one field forged: whatever is in them, a call is answered right and the next one too."""

from __future__ import annotations

import copy
import itertools
import json
import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from ov_backend import Settings
from ov_backend.engine.engine import Engine
from ov_backend.store.entry_file import GRAPHS, pack, unpack

WRONG: tuple[Any, ...] = (None, -1, 7, 1 << 70, True, 0.5, float("inf"), "x", "\ud800", "torch.float99")
WRONG += ("builtins:dict", [], [0], {}, {"tensor": 9})


#: FUZZ=n tries every value at every place; otherwise each fourth place gets one of them, another one than its neighbour.
STRIDE, EACH = (1, 1) if os.environ.get("FUZZ") else (len(WRONG), 4)


class Answer(torch.nn.Module):
    """Returns a structure with every kind of description: containers, a tensor twice, plain values, a dtype."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> Any:
        y = self.layer(x)
        return {"all": (y, [y, x, None, 3, "text"]), "dtype": torch.float32}


def same(a: Any, b: Any) -> bool:
    """Whether two answers are equal in structure and value."""
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and torch.allclose(a, b, atol=1e-5)
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    return all(map(same, a, b)) and len(a) == len(b) if isinstance(a, (list, tuple)) else a == b


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every value in a JSON document, the document itself included."""
    yield path
    for key, item in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from places(item, (*path, key))


def forged(document: Any, path: tuple[Any, ...], value: Any) -> Any:
    """A copy of a document with the value at one place replaced."""
    if not path:
        return value
    document = copy.deepcopy(document)
    inner = document
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return document


class Entry:
    """A stored entry, which can be written with other content, and the answers of a new engine that finds it."""

    def __init__(self, strict: Callable[..., Settings]) -> None:
        self.settings, self.module, self.x = strict(), Answer().eval(), torch.randn(2, 3)
        self.expected = self.module(self.x)
        assert same(self.answer(), self.expected)
        (self.path,) = Path(self.settings.cache_folder).glob(f"*{GRAPHS.suffix}")
        self.files = unpack(self.path, GRAPHS, self.path.stem)

    def answer(self) -> Any:
        engine = Engine(self.settings)
        try:
            return engine.network("net", self.module, self.module.forward)(self.x)
        finally:
            engine.clear()

    def check(self, files: dict[str, bytes], key: str | None = None) -> bool:
        """Answer twice with this content in the entry; whether the entry was a miss and replaced."""
        with self.path.open("wb") as file:
            pack(file, GRAPHS, key or self.path.stem, files)
        assert same(self.answer(), self.expected)
        replaced = unpack(self.path, GRAPHS, self.path.stem) != files
        assert same(self.answer(), self.expected)
        return replaced


def test_a_forged_value_at_any_place_of_a_description_changes_no_answer(
    strict: Callable[..., Settings], caplog: pytest.LogCaptureFixture
) -> None:
    entry = Entry(strict)
    document = json.loads(entry.files["graph.json"])
    replaced = 0
    for number, path in enumerate(itertools.islice(places(document), 0, None, EACH)):
        for value in WRONG[number % STRIDE :: STRIDE]:
            caplog.clear()
            with caplog.at_level(logging.WARNING):
                description = json.dumps(forged(document, path, value))
                miss = entry.check({**entry.files, "graph.json": description.encode()})
            assert len(caplog.records) <= 1, (path, value)
            replaced += miss
    assert replaced > 20 / EACH


@pytest.mark.parametrize("part", ["model.xml", "model.bin", "graph.json"])
def test_a_forged_part_is_a_miss_and_replaced(strict: Callable[..., Settings], part: str) -> None:
    entry = Entry(strict)
    for content in (b"", b"\0" * 10, b"<net>", b"[" * 100_000, b"\xff" * 100, entry.files[part][:-3]):
        entry.check({**entry.files, part: content})
    entry.check({name: data for name, data in entry.files.items() if name != part})


def test_an_entry_under_another_key_is_a_miss(strict: Callable[..., Settings]) -> None:
    entry = Entry(strict)
    entry.check(entry.files, "ab" * 16)
    assert unpack(entry.path, GRAPHS, entry.path.stem)["graph.json"] == entry.files["graph.json"]
