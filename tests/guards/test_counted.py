"""What a forward counts is counted once a call, wherever it keeps the number; what it writes and draws, it writes and draws."""

from __future__ import annotations

import array
import configparser
import os
import pathlib
import pprint
import random
import secrets
import sys
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from ov_backend import Settings
from tests.helpers.readers import Scaled, X
from tests.helpers.small import engine_for

COUNTS = types.ModuleType("counts_of_a_test")


class Counter:
    count = 0


def in_class(module: Any) -> None:
    Counter.count += 1


def in_module(module: Any) -> None:
    COUNTS.count += 1


def in_imported_module(module: Any) -> None:
    import counts_of_a_test

    counts_of_a_test.count += 1


def in_environment(module: Any) -> None:
    os.environ["OV_BACKEND_TEST"] = str(int(os.environ["OV_BACKEND_TEST"]) + 1)


def in_array(module: Any) -> None:
    module.o[0] += 1


COUNTERS: dict[str, tuple[Callable[[Any], None], Callable[[], Any], Callable[[Any], int]]] = {
    "a class": (in_class, int, lambda m: Counter.count),
    "a Python module": (in_module, int, lambda m: COUNTS.count),
    "an imported module": (in_imported_module, int, lambda m: COUNTS.count),
    "the environment": (in_environment, int, lambda m: int(os.environ["OV_BACKEND_TEST"])),
    "an array": (in_array, lambda: array.array("d", [0.0]), lambda m: int(m.o[0])),
    "bytes": (in_array, lambda: bytearray(1), lambda m: m.o[0]),
}


@pytest.mark.parametrize("where", COUNTERS)
def test_a_count_grows_by_one(strict: Callable[..., Settings], monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    count, make, now = COUNTERS[where]
    monkeypatch.setattr(Counter, "count", 0)
    monkeypatch.setattr(COUNTS, "count", 0, raising=False)
    monkeypatch.setitem(sys.modules, "counts_of_a_test", COUNTS)
    monkeypatch.setenv("OV_BACKEND_TEST", "0")

    def read(module: Any) -> float:
        count(module)
        return float(now(module))

    module = Scaled(read, o=make()).requires_grad_(False)
    network = engine_for(strict(fallback="pytorch"), module)
    answers = [network(X) for _ in range(3)]
    assert now(module) == 3
    torch.testing.assert_close(answers, [module.linear(X) * number for number in (1, 2, 3)])


def file_of(folder: pathlib.Path) -> pathlib.Path:
    np.save(folder / "number.npy", np.array([2.0]))
    (folder / "number.txt").write_text("2.0")
    (folder / "number.ini").write_text("[a]\nscale = 2.0\n")
    torch.save(2.0, folder / "number.pt")
    return folder


def of_config(path: pathlib.Path) -> float:
    parser = configparser.ConfigParser()
    parser.read(path / "number.ini")
    return parser.getfloat("a", "scale")


READERS: dict[str, Callable[[pathlib.Path], float]] = {
    "numpy": lambda path: float(np.load(path / "number.npy")[0]),
    "numpy's text": lambda path: float(np.loadtxt(path / "number.txt")),
    "torch": lambda path: float(torch.load(path / "number.pt")),
    "a configuration": of_config,
    "a list of files": lambda path: float(len(list(path.iterdir()))),
    "a walk": lambda path: float(sum(len(files) for _, _, files in os.walk(path))),
    "random numbers of one's own": lambda path: random.Random().choice([1.0, 2.0, 3.0]),
    "secrets": lambda path: float(secrets.randbelow(1000)),
    "a printed text": lambda path: float(pprint.PrettyPrinter().pprint(1) is None),
    "a written file": lambda path: float(np.save(path / "other.npy", np.ones(1)) is None),
}


@pytest.mark.parametrize("what", READERS)
def test_what_comes_from_outside_stays_in_pytorch(strict: Callable[..., Settings], tmp_path: pathlib.Path, what: str) -> None:
    read, folder = READERS[what], file_of(tmp_path)
    network = engine_for(strict(fallback="pytorch"), Scaled(lambda m: read(folder)).requires_grad_(False))
    network(X)
    assert network.statistics.calls == 0
    assert "calls" in next(iter(network.statistics.fallbacks))


def test_an_input_that_is_changed_stays_in_pytorch(strict: Callable[..., Settings]) -> None:
    class Marking(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            x.stamp = 1
            return x * 2

    x: Any = torch.ones(2)
    network = engine_for(strict(fallback="pytorch"), Marking())
    network(x)
    assert x.stamp == 1
