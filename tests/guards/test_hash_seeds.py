"""A graph is not found by a process, or for a model, that goes through its sets in another order.

A new process hashes strings with another seed, and modules lie at other addresses.
"""

from __future__ import annotations

import builtins
import functools
import operator
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch

from ov_backend import Settings
from tests.helpers.alone import alone
from tests.helpers.readers import Scaled, X
from tests.helpers.small import engine_for

NAMES = ("one", "two", "three", "four", "five", "six", "seven", "eight")
FACTORS = {name: 0.5 + 0.25 * number for number, name in enumerate(NAMES)}
TABLE: dict[str, set[str]] = {"a]b": set(NAMES)}
SCALE = {"scale": 2.0}
Alias = set


def mixed(names: Iterable[str]) -> float:
    """A number that depends on the order of the names."""
    total = 0.0
    for name in names:
        total = total * 0.9 + FACTORS[name]
    return total


class Plain:
    """Has no text of its own: Python writes its address."""


def closed() -> Callable[[Any], float]:
    names = set(NAMES)
    return lambda module: mixed(names)


def default(module: Any, names: frozenset[str] = frozenset(NAMES)) -> float:
    return mixed(names)


def keyword_default(module: Any, *, names: frozenset[str] = frozenset(NAMES)) -> float:
    return mixed(names)


def filled(module: Any) -> float:
    names = module.empty.copy()
    names.update(NAMES)
    return mixed(names)


@functools.lru_cache
def kept() -> float:
    return SCALE["scale"]


READS: dict[str, Callable[[Any], float]] = {
    "a closure": closed(),
    "a default": default,
    "a keyword's default": keyword_default,
    "an item of a global": lambda m: mixed(TABLE["a]b"]),
    "a set of attributes' items": lambda m: mixed(set(m.names)),
    "a comprehension": lambda m: mixed({name[:5] for name in m.names}),
    "a view of keys": lambda m: mixed(FACTORS.keys() - {"one"}),
    "a union of attributes": lambda m: mixed(m.first | m.rest),
    "a name that is computed": lambda m: mixed(getattr(m, "na" + m.end)),
    "a hash": lambda m: float(hash("one") % 97),
    "an address": lambda m: float(id(m) % 9973),
    "another name of set": lambda m: mixed(Alias(m.names)),
    "a function in an attribute": lambda m: float(m.hashed("one") % 97),
    "the text of an object": lambda m: float(sum(map(ord, repr(m.o)))),
    "the text of an object in an f-string": lambda m: float(len(f"{m.o}".strip("0123456789abcdef>"))),
    "a builtin of a module": lambda m: float(builtins.id(m) % 9973),
    "the copy of an empty set": filled,
    "operators as functions": lambda m: mixed(operator.sub(FACTORS.keys(), ["one"])),
    "a set of Python's own": lambda m: float(sum(i * len(name) for i, name in enumerate(sys.stdlib_module_names)) % 9973),
    "results that are kept": lambda m: kept(),
}


def answers(folder: str, scale: float) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """For each way of reading: the answer by the store in a folder, and PyTorch's; a scale is kept, and then changed to 5."""
    found = {}
    SCALE["scale"] = scale
    kept.cache_clear()
    kept()
    SCALE["scale"] = 5.0
    for what, read in READS.items():
        torch.manual_seed(0)
        module = Scaled(read, names=NAMES, first=set(NAMES[:4]), rest=set(NAMES[4:]), name_set=set(NAMES), end="me_set")
        module.empty, module.hashed, module.o = set(), hash, Plain()
        module.eval().requires_grad_(False)
        network = engine_for(Settings(precision="f32", cache_dir=folder, fallback="raise"), module)
        found[what] = network(X), module(X)
    return found


def test_a_process_with_another_seed_of_hashes_does_not_take_the_graph(tmp_path: Path) -> None:
    here, there = answers(str(tmp_path), 2.0), alone(answers, str(tmp_path), 3.0)
    for what, (answer, eager) in (*here.items(), *there.items()):
        torch.testing.assert_close(answer, eager, rtol=1e-3, atol=1e-5, msg=lambda text, what=what: f"{what}: {text}")
    assert any(not torch.equal(here[what][1], there[what][1]) for what in READS), "both processes have the same order"


class InSet(torch.nn.Module):
    """Goes through a set of its children, whose order is that of their addresses."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(6))
        self.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in {*self.layers}:
            x = torch.tanh(layer(x))
        return x


def test_another_model_of_the_same_kind_has_its_own_order(strict: Callable[..., Settings]) -> None:
    models = [InSet().eval() for _ in range(6)]
    for model in models:
        torch.testing.assert_close(engine_for(strict(), model)(X), model(X), rtol=1e-3, atol=1e-5)
