"""What code reads by names that lead outside it: Python modules, builtins, classes, functions; and what cannot be followed."""

from __future__ import annotations

import abc
import builtins
import collections
import functools
import logging
import operator
import sys
import threading
import types
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from ov_backend import Settings
from ov_backend.engine.engine import Engine
from tests.helpers.readers import Scaled, X, assert_eager, assert_followed
from tests.helpers.small import engine_for, wait

Strict = Callable[..., Settings]

OPTIONS = types.ModuleType("options_of_a_test")
OPTIONS.scale = 2.0  # type: ignore[attr-defined]
LOG = logging.getLogger("ov_backend.test_names")
COUNT = 0
#: Code that asks for this class by its name stays in PyTorch.
STAND_INS = (torch._subclasses.FakeTensor,)


class Kind(abc.ABC):  # noqa: B024  # classes are registered with it
    pass


class Plain:
    scale = 2.0
    __match_args__ = ("scale",)


class Asking(torch.nn.Module):
    def __init__(self, ask: Callable[[torch.Tensor], float]) -> None:
        super().__init__()
        self.linear, self.ask = torch.nn.Linear(4, 4), ask

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) * self.ask(x)


def noted() -> float:
    return 2.0


def by_a_variable(module: Any) -> float:
    options = OPTIONS
    return options.scale  # type: ignore[no-any-return]


def not_there_yet(module: Any) -> float:
    try:
        return LATER  # type: ignore[name-defined, no-any-return]
    except NameError:
        return 2.0


def by_position(module: Any) -> float:
    match module.o:
        case Plain(scale):
            return scale
    return 0.0


def hidden(module: Any) -> float:
    return float(abs(-2.0))


#: What is read, how it changes, and attributes of the module.
#: What a host or an extension keeps of functions that it replaced.
ORIGINALS = types.SimpleNamespace(double=lambda: 2.0)


FOLLOWED: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any], dict[str, Any]]] = {
    "a Python module by a variable": (by_a_variable, lambda m: setattr(OPTIONS, "scale", 3.0), {}),
    "a Python module by getattr": (lambda m: getattr(OPTIONS, "scale"), lambda m: setattr(OPTIONS, "scale", 3.0), {}),  # noqa: B009
    "a Python module in an attribute": (lambda m: m.o.scale, lambda m: setattr(OPTIONS, "scale", 3.0), {"o": OPTIONS}),
    "a Python module in sys.modules": (
        lambda m: sys.modules["options_of_a_test"].scale,
        lambda m: setattr(OPTIONS, "scale", 3.0),
        {},
    ),
    "whether there is a Python module": (
        lambda m: 2.0 if "not_there_yet" in sys.modules else 3.0,
        lambda m: sys.modules.__setitem__("not_there_yet", OPTIONS),
        {},
    ),
    "a global that hides a builtin": (hidden, lambda m: globals().__setitem__("abs", lambda value: 3.0), {}),
    "a replaced builtin": (hidden, lambda m: setattr(builtins, "abs", lambda value: 3.0), {}),
    "a global that is not there yet": (not_there_yet, lambda m: globals().__setitem__("LATER", 3.0), {}),
    "the level of a log": (lambda m: float(LOG.level), lambda m: LOG.setLevel(10), {}),
    "the level of a log in an attribute": (lambda m: float(m.o.level), lambda m: LOG.setLevel(10), {"o": LOG}),
    "a match by position": (by_position, lambda m: setattr(m.o, "scale", 3.0), {"o": Plain()}),
    "a text that names an attribute": (
        lambda m: float(f"{m.o.scale}"),
        lambda m: setattr(m.o, "scale", 3.0),
        {"o": Plain()},
    ),
    "a class registered with another": (
        lambda m: 2.0 if isinstance(m.o, Kind) else 3.0,
        lambda m: Kind.register(collections.OrderedDict),
        {"o": collections.OrderedDict()},
    ),
    "a function in a namespace": (lambda m: ORIGINALS.double(), lambda m: setattr(ORIGINALS, "double", lambda: 3.0), {}),
    "the qualified name of a class": (
        lambda m: float(len(type(m.o).__qualname__)),
        lambda m: setattr(Plain, "__qualname__", "Another"),
        {"o": Plain()},
    ),
}


@pytest.fixture(autouse=True)
def _restored() -> Any:
    before, absolute = dict(globals()), builtins.abs
    sys.modules["options_of_a_test"] = OPTIONS
    yield
    sys.modules.pop("options_of_a_test"), sys.modules.pop("not_there_yet", None)
    builtins.abs = absolute
    globals().pop("LATER", None), globals().pop("abs", None)
    globals().update(before)
    ORIGINALS.double = lambda: 2.0
    OPTIONS.scale, Plain.__qualname__ = 2.0, "Plain"  # type: ignore[attr-defined]
    LOG.setLevel(logging.NOTSET)
    vars(noted).clear()


@pytest.mark.parametrize("what", FOLLOWED)
def test_the_answer_follows_what_a_name_stands_for(strict: Strict, what: str) -> None:
    read, change, attributes = FOLLOWED[what]
    assert_followed(strict, Scaled(read, **attributes), change)


def sets_a_global(module: Any) -> float:
    global COUNT
    COUNT += 1
    return 2.0


def sets_an_attribute(module: Any) -> float:
    noted.calls = vars(noted).get("calls", 0) + 1  # type: ignore[attr-defined]
    return 2.0


def draws(module: Any) -> float:
    return float(np.random.default_rng().random())


def asks_for_the_class(module: Any) -> float:
    return 2.0 if type(module.linear(X)) is torch.Tensor else 3.0


UNFOLLOWED: dict[str, tuple[Callable[[Any], Any], dict[str, Any]]] = {
    "an attrgetter": (lambda m: m.get(m), {"get": operator.attrgetter("scale"), "scale": 2.0}),
    "a partial of getattr": (lambda m: m.get("scale"), {"get": functools.partial(getattr, Plain)}),
    "a weak reference": (lambda m: m.o().scale, {"o": weakref.ref(Plain)}),
    "a view on a dict's values": (lambda m: sum(m.o), {"o": {"a": 2.0}.values()}),
    "a global that the forward sets": (sets_a_global, {}),
    "an attribute that the forward sets on a function": (sets_an_attribute, {}),
    "numbers of a generator of numpy": (draws, {}),
    "the class of a tensor": (asks_for_the_class, {}),
}


@pytest.mark.parametrize("what", UNFOLLOWED)
def test_what_cannot_be_followed_stays_in_pytorch(strict: Strict, what: str) -> None:
    read, attributes = UNFOLLOWED[what]
    module = Scaled(read, **attributes)
    network = engine_for(strict(fallback="pytorch"), module)
    for _ in range(3):
        network(X)
    assert network.statistics.calls == 0
    assert network.statistics.fallbacks.total() == 3


def test_a_call_does_not_join_the_trace_of_another_that_differs_in_what_the_code_asks(strict: Strict) -> None:
    """The code of an earlier network of the class is taken to be this one's until its own trace has shown more."""
    begun = threading.Lock()
    begun.acquire()

    def ask(x: torch.Tensor) -> float:
        if isinstance(x, STAND_INS):
            list(map(type(begun).release, [begun]))  # a trace does not see what C code calls, and ends before any other effect
            wait(0.3)
        return getattr(x, "scale", 3.0)

    engine = Engine(strict(fallback="pytorch"))
    earlier, module = Asking(lambda x: 2.0), Asking(ask).requires_grad_(False)
    assert_eager(engine.network("earlier", earlier), earlier)
    network = engine.network("net", module)
    other = threading.Thread(target=network, args=(X,))
    other.start()
    assert begun.acquire(timeout=30)
    marked = X.clone()
    marked.scale = 7.0  # type: ignore[attr-defined]
    assert_eager(network, module, marked)
    other.join()
    assert_eager(network, module)


def test_a_lasting_answer_of_a_cached_function_is_no_stand_in(strict: Strict) -> None:
    @functools.lru_cache
    def table(count: int) -> torch.Tensor:
        return torch.arange(count).float()

    module = Scaled(lambda m: table(4))
    network = engine_for(strict(fallback="pytorch"), module)
    network(X)
    assert type(table(4)) is torch.Tensor
    assert_eager(network, module)
