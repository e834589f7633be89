"""Changes that once went unseen: how values are grouped, which tensors are one, what options, texts and objects in C hold."""

from __future__ import annotations

import argparse
import contextlib
import pickle
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from ov_backend import Settings
from tests.helpers.readers import Object, Scaled, X, assert_eager
from tests.helpers.small import engine_for


class Options:
    """As the WebUI's: attributes are looked up in a table."""

    def __init__(self, **data: Any) -> None:
        self.data = data

    def __getattr__(self, name: str) -> Any:
        try:
            return self.__dict__["data"][name]
        except KeyError:
            raise AttributeError(name) from None

    def __getitem__(self, name: str) -> Any:
        return self.data[name]


class Unready:
    """As pydantic's classes that are not complete: whatever of it is asked for raises, and not an AttributeError."""

    __slots__ = ("absent", "scale")

    def __init__(self, scale: float) -> None:
        self.scale = scale

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(f"{name} was asked for too early")


UNREADY = Unready(2.0)


class Number(float):
    scale = 2.0


class Text(str):
    """A text with attributes."""


class Sequence:
    """What ``torch.tensor`` reads by calling it back."""

    def __init__(self, module: Any) -> None:
        self.module = module

    def __len__(self) -> int:
        return 4

    def __getitem__(self, i: int) -> float:
        if i >= 4:
            raise IndexError
        return float(self.module.scale)


class Asking:
    """Answers operators of PyTorch itself."""

    scale = 2.0

    @classmethod
    def __torch_function__(cls, function: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        return args[0] * cls.scale


OPTIONS = Options(scale=2.0, sizes=[2.0])
NAMESPACE = types.SimpleNamespace(scale=2.0)
ask = getattr


def carried(value: Any) -> Any:
    """A value with an attribute ``scale``."""
    value.scale = 2.0
    return value


def set_scale(module: Any) -> None:
    module.o.scale = 3.0


def by_local_name(module: Any) -> float:
    options = OPTIONS
    return float(options.scale)


def by_default(module: Any, read: Any = getattr) -> float:
    return float(read(module.o, module.key))


Case = tuple[Callable[[Any], Any], Callable[[], dict[str, Any]], Callable[[Any], Any]]
CASES: dict[str, Case] = {
    "a regrouped list": (
        lambda m: float(len(m.o[0])),
        lambda: {"o": [[1, 2], [3]]},
        lambda m: setattr(m, "o", [[1], [2, 3]]),
    ),
    "a regrouped dict": (
        lambda m: float(len(m.o["a"])),
        lambda: {"o": {"a": {"b": 1, "c": 2}}},
        lambda m: setattr(m, "o", {"a": {"b": 1}, "c": 2}),
    ),
    "a list option": (lambda m: OPTIONS.sizes[0], dict, lambda m: OPTIONS.data.update(sizes=[3.0])),
    "an option by a local name": (by_local_name, dict, lambda m: OPTIONS.data.update(scale=3.0)),
    "an option by an item": (lambda m: OPTIONS["scale"], dict, lambda m: OPTIONS.data.update(scale=3.0)),
    "an object in a set": (lambda m: next(iter(m.o)).scale, lambda: {"o": {Object()}}, lambda m: setattr(*_of(m.o), 3.0)),
    "an attribute of a number": (lambda m: m.o.scale, lambda: {"o": carried(Number(1))}, set_scale),
    "an attribute of a text": (lambda m: m.o.scale, lambda: {"o": carried(Text("a"))}, set_scale),
    "a masked array": (
        lambda m: float(m.o.sum()),
        lambda: {"o": np.ma.array([1.0, 1.0, 1.0], mask=[False, False, True])},
        lambda m: m.o.mask.__setitem__(2, False),
    ),
    "a namespace that is compared": (
        lambda m: 2.0 if m.o == types.SimpleNamespace(scale=2.0) else 3.0,
        lambda: {"o": types.SimpleNamespace(scale=2.0)},
        set_scale,
    ),
    "a namespace that is printed": (
        lambda m: float(len(repr(m.o))),
        lambda: {"o": argparse.Namespace(other=1)},
        lambda m: setattr(m.o, "other", 1000),
    ),
    "a pickled object": (lambda m: float(sum(pickle.dumps(m.o)) % 97), lambda: {"o": Object()}, set_scale),
    "an attribute by another name of getattr": (lambda m: ask(m.o, m.key), lambda: {"o": Object(), "key": "scale"}, set_scale),
    "getattr as a default": (by_default, lambda: {"o": Object(), "key": "scale"}, set_scale),
    "a name of documentation": (
        lambda m: float(len(m.o.name_or_path)),
        lambda: {"o": types.SimpleNamespace(name_or_path="ab")},
        lambda m: setattr(m.o, "name_or_path", "abc"),
    ),
    "a sequence that torch.tensor reads": (
        lambda m: torch.tensor(Sequence(m)),
        lambda: {"scale": 2.0},
        lambda m: setattr(m, "scale", 3.0),
    ),
    "an object that answers operators": (
        lambda m: torch.mul(torch.ones(4), m.o),
        lambda: {"o": Asking()},
        lambda m: setattr(Asking, "scale", 3.0),
    ),
    "the attribute of a tensor in a list": (
        lambda m: m.o[0].scale,
        lambda: {"o": [carried(torch.ones(1))]},
        lambda m: setattr(m.o[0], "scale", 3.0),
    ),
}


def _of(objects: set[Any]) -> tuple[Any, str]:
    return next(iter(objects)), "scale"


@pytest.mark.parametrize("what", CASES)
def test_the_answer_follows(strict: Callable[..., Settings], monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    monkeypatch.setattr(OPTIONS, "data", {"scale": 2.0, "sizes": [2.0]})
    monkeypatch.setattr(Asking, "scale", 2.0)
    read, attributes, change = CASES[what]
    module = Scaled(read, **attributes()).requires_grad_(False)
    network = engine_for(strict(fallback="pytorch"), module)
    for _ in range(2):
        assert_eager(network, module)
    before = module(X)
    change(module)
    assert not torch.equal(module(X), before), "the case changes nothing"
    for _ in range(2):
        assert_eager(network, module)


class Three(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b, self.c = (torch.nn.Linear(4, 4, bias=False) for _ in range(3))
        self.c.weight = self.a.weight
        self.others = [self.a.weight]
        self.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.c(torch.tanh(self.b(torch.tanh(self.a(x))))) @ self.others[0]


def test_which_weights_are_one_is_followed(strict: Callable[..., Settings]) -> None:
    folder = strict()
    module = Three()
    network = engine_for(folder, module)
    assert_eager(network, module)
    module.others[0] = module.b.weight
    assert_eager(network, module)
    module.c.weight = module.b.weight
    assert_eager(network, module)
    again = Three()
    again.c.weight = again.b.weight
    assert_eager(engine_for(folder, again), again)


class Doubled(torch.nn.Parameter):
    @classmethod
    def __torch_function__(cls, function: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = super().__torch_function__(function, kinds, args, kwargs or {})
        return result * 2 if function is torch.nn.functional.linear else result


def test_a_weight_of_a_class_of_its_own_stays_in_pytorch(strict: Callable[..., Settings]) -> None:
    module = torch.nn.Linear(4, 4)
    module.weight = Doubled(torch.randn(4, 4), requires_grad=False)
    network = engine_for(strict(fallback="pytorch"), module.requires_grad_(False))
    assert_eager(network, module)
    assert "Doubled" in next(iter(network.statistics.fallbacks))


def test_a_replaced_call_of_modules_stays_in_pytorch(strict: Callable[..., Settings], monkeypatch: pytest.MonkeyPatch) -> None:
    module = torch.nn.Sequential(torch.nn.Linear(4, 4)).requires_grad_(False)
    network = engine_for(strict(fallback="pytorch"), module, None)
    assert_eager(network, module)
    original = torch.nn.Module.__call__

    def call(self: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        return result * 3 if isinstance(self, torch.nn.Linear) else result

    monkeypatch.setattr(torch.nn.Module, "__call__", call)
    torch.testing.assert_close(network(X), module.forward(X))


@contextlib.contextmanager
def entered() -> Iterator[float]:
    yield 2.0


def test_a_context_manager_that_was_entered_is_no_hindrance(strict: Callable[..., Settings]) -> None:
    """An entered one has lost its function and arguments."""
    manager = entered()
    with manager as number:
        network = engine_for(strict(), Scaled(lambda m: m.o[1], o=[manager, number]).requires_grad_(False))
        torch.testing.assert_close(network(X), network.module(X))
    assert network.statistics.calls == 1


class OfUnready(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.unready = Unready(3.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) * self.unready.scale * UNREADY.scale


def test_an_object_whose_attributes_raise_is_followed(strict: Callable[..., Settings], monkeypatch: pytest.MonkeyPatch) -> None:
    module, x = OfUnready().eval().requires_grad_(False), torch.ones(2, 4)
    network = engine_for(strict(), module)
    torch.testing.assert_close(network(x), module(x), rtol=1e-3, atol=1e-4)
    monkeypatch.setattr(UNREADY, "scale", 5.0)
    torch.testing.assert_close(network(x), module(x), rtol=1e-3, atol=1e-4)
    module.unready.scale = 7.0
    torch.testing.assert_close(network(x), module(x), rtol=1e-3, atol=1e-4)
