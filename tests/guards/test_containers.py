"""Containers, buffers and callables of Python's library are read by value, also where they are global."""

from __future__ import annotations

import array
import collections
import ctypes
import enum
import functools
import itertools
import logging
import re
import threading
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import field
from typing import Any

import numpy as np
import pytest
import torch

from ov_backend import Settings
from tests.helpers.readers import Scaled, X, assert_eager
from tests.helpers.small import engine_for

Strict = Callable[..., Settings]

DEQUE = collections.deque([2.0, 3.0])
CHAIN = collections.ChainMap({"first": 1.0}, {"scale": 2.0})
USER_DICT = collections.UserDict(scale=2.0)
USER_LIST = collections.UserList([2.0])
SHOWN = {"scale": 2.0}
VIEW = types.MappingProxyType(SHOWN)
ARRAY = array.array("d", [2.0, 3.0])
BYTES = bytearray(b"\2\3")
MEMORY = memoryview(BYTES)
NUMBERS = (ctypes.c_double * 2)(2.0, 3.0)
PARTIAL = functools.partial(lambda value: value, 2.0)


class Derived(dict):  # type: ignore[type-arg]
    """A dict with an attribute of its own."""

    scale = 2.0


class Meta(type):
    scale = 2.0


class Made(metaclass=Meta):
    """Its class's class has the value."""


class Level(enum.Enum):
    """An enum whose member's value is exchanged."""

    LOW = 2.0


class Local(threading.local):
    """Another value in each thread."""

    scale = 7.0


DERIVED, LOCAL, COUNTER = Derived(), Local(), itertools.count(1)
LOCAL.scale = 2.0


def noted() -> float:
    return 2.0


noted.scale = 2.0  # type: ignore[attr-defined]

CASES: dict[str, tuple[Callable[[Any], float], Callable[[], Any]]] = {
    "a deque": (lambda m: DEQUE[0], lambda: DEQUE.rotate(1)),
    "a chain of dicts": (lambda m: CHAIN["scale"], lambda: CHAIN.maps[1].update(scale=3.0)),
    "a UserDict": (lambda m: USER_DICT["scale"], lambda: USER_DICT.update(scale=3.0)),
    "a UserList": (lambda m: USER_LIST[0], lambda: USER_LIST.insert(0, 3.0)),
    "a view of a dict": (lambda m: VIEW["scale"], lambda: SHOWN.update(scale=3.0)),
    "an array": (lambda m: ARRAY[0], lambda: ARRAY.__setitem__(0, 3.0)),
    "a bytearray": (lambda m: float(BYTES[0]), lambda: BYTES.__setitem__(0, 3)),
    "a memoryview": (lambda m: float(MEMORY[1]), lambda: BYTES.__setitem__(1, 4)),
    "an array of C": (lambda m: NUMBERS[0], lambda: NUMBERS.__setitem__(0, 3.0)),
    "an exchanged partial": (lambda m: PARTIAL(), lambda: PARTIAL.__setstate__((lambda value: value, (3.0,), {}, {}))),
    "an attribute of a dict": (lambda m: DERIVED.scale, lambda: setattr(DERIVED, "scale", 3.0)),
    "an attribute of a metaclass": (lambda m: Made.scale, lambda: setattr(Meta, "scale", 3.0)),
    "the value of an enum's member": (lambda m: Level.LOW.value, lambda: setattr(Level.LOW, "_value_", 3.0)),
    "an attribute of a function": (lambda m: noted.scale, lambda: setattr(noted, "scale", 3.0)),  # type: ignore[attr-defined]
}


def noted_on_adapter(scale: float) -> logging.LoggerAdapter[logging.Logger]:
    adapter = logging.LoggerAdapter(logging.getLogger(__name__), {})
    adapter.scale = scale  # type: ignore[attr-defined]
    return adapter


THREE = functools.partial(float, 3)

EXCHANGED: dict[str, tuple[Callable[[Any], float], Any, Any]] = {
    "a longer deque of the same items": (lambda held: float(held.maxlen), collections.deque([1], 2), collections.deque([1], 3)),
    "the end of a long pattern": (
        lambda held: 2.0 if held.match("a" * 300 + "b") else 3.0,
        re.compile("a" * 300 + "b"),
        re.compile("a" * 300 + "c"),
    ),
    "a function of numpy with attributes": (lambda held: float(held(2.0, 3.0)), np.add, np.multiply),
    "the name of a logger": (lambda held: float(len(held.name)), logging.getLogger("of"), logging.getLogger("of a test")),
    "a number on an adapter": (lambda held: held.scale, noted_on_adapter(2.0), noted_on_adapter(3.0)),
    "what makes a default": (lambda held: held.default_factory() + 1, field(default_factory=int), field(default_factory=THREE)),
}


@pytest.mark.parametrize("read, first, second", EXCHANGED.values(), ids=EXCHANGED.keys())
def test_an_object_that_differs_where_its_text_does_not(
    strict: Strict, read: Callable[[Any], float], first: Any, second: Any
) -> None:
    module = Scaled(lambda m: read(m.held))
    module.held = first
    network = engine_for(strict(fallback="pytorch"), module)
    assert_eager(network, module)
    module.held = second
    assert_eager(network, module)


@pytest.mark.parametrize("read, change", CASES.values(), ids=CASES.keys())
def test_the_answer_follows_a_global_object(strict: Strict, read: Callable[[Any], float], change: Callable[[], Any]) -> None:
    module = Scaled(read)
    network = engine_for(strict(fallback="pytorch"), module)
    assert_eager(network, module)
    before = read(module)
    change()
    assert read(module) != before
    assert_eager(network, module)


def _numbers() -> Iterator[float]:
    yield from itertools.count(1.0)


GENERATOR = _numbers()


@pytest.mark.parametrize("read", [lambda m: next(COUNTER), lambda m: next(GENERATOR)])
def test_what_differs_at_each_call_stays_in_pytorch(strict: Strict, read: Callable[[Any], float]) -> None:
    network = engine_for(strict(fallback="pytorch"), Scaled(read))
    first, second = network(X), network(X)
    assert network.statistics.calls == 0
    assert not torch.equal(first, second)


class Refusing(Mapping[str, float]):
    """Cannot be read before it is ready, nor after it was closed."""

    values_now: dict[str, float] | None = None

    def _ready(self) -> dict[str, float]:
        if self.values_now is None:
            raise RuntimeError("not ready")
        return self.values_now

    def __getitem__(self, key: str) -> float:
        return self._ready()[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._ready())

    def __len__(self) -> int:
        return len(self._ready())


REFUSING = Refusing()


def test_a_mapping_that_cannot_be_read_is_no_error(strict: Strict) -> None:
    module = Scaled(lambda m: REFUSING["scale"] if m.reads else 3.0, reads=False)
    network = engine_for(strict(fallback="pytorch"), module)
    assert_eager(network, module)
    REFUSING.values_now, module.reads = {"scale": 2.0}, True
    assert_eager(network, module)
    REFUSING.values_now, module.reads = None, False
    assert_eager(network, module)
    REFUSING.values_now, module.reads = {"scale": 4.0}, True
    assert_eager(network, module)
    assert not any("not ready" in reason for reason in network.statistics.fallbacks)


def test_what_differs_in_each_thread_stays_in_pytorch(strict: Strict) -> None:
    module = Scaled(lambda m: LOCAL.scale)
    network = engine_for(strict(fallback="pytorch"), module)
    torch.testing.assert_close(network(X), module(X))
    assert network.statistics.calls == 0
