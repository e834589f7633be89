"""What is read by no name of its own: how objects are printed and hashed, what functions carry, what the process answers."""

from __future__ import annotations

import collections.abc
import contextvars
import copy
import copyreg
import dataclasses
import functools
import inspect
import os
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch

from ov_backend import Settings
from tests.helpers.readers import Object, Scaled, assert_eager, assert_followed
from tests.helpers.small import engine_for


class Printed:
    """A class of its own for each test."""

    def __repr__(self) -> str:
        return "2.0"

    def __hash__(self) -> int:
        return 2

    def __copy__(self) -> float:
        return 2.0

    def __class_getitem__(cls, item: object) -> float:
        return 2.0


def printed() -> Any:
    own = ("__repr__", "__hash__", "__copy__", "__class_getitem__")
    return type("Mine", (Printed,), {name: vars(Printed)[name] for name in own})()


def carrier() -> Any:
    def function() -> float:
        return 1.0

    function.scale = 2.0  # type: ignore[attr-defined]
    return function


class Described:
    """ab"""

    __match_args__ = ("scale", "other")

    def __new__(cls, scale: float = 2.0) -> Any:
        made = object.__new__(cls)
        made.scale, made.other = scale, 5.0
        return made

    def __getnewargs__(self) -> tuple[float]:
        return (2.0,)

    def __getstate__(self) -> None:
        return None


def described() -> Any:
    """An object of a class derived from a class of its own, which has all of these members."""
    names = ("__doc__", "__match_args__", "__new__", "__getnewargs__", "__getstate__")
    return type("Mine", (type("Base", (), {name: vars(Described)[name] for name in names}),), {})()


def matched(module: Any) -> float:
    match module.o, type(module.o):
        case [value, cls]:
            match value:
                case cls(scale, _):
                    return float(scale)
    return 1.0


def base_with(name: str, value: Any) -> Callable[[Any], None]:
    return lambda module: setattr(type(module.o).__base__, name, value)


def signature_of(default: float) -> inspect.Signature:
    return inspect.Signature([inspect.Parameter("scale", inspect.Parameter.KEYWORD_ONLY, default=default)])


def made_of_3(value: Any) -> Any:
    return type(value), (3.0,)


class SlottedList(list[float]):
    __slots__ = ("__own", "scale")

    def __init__(self) -> None:
        super().__init__([1.0])
        self.scale = self.__own = 2.0

    def read(self) -> float:
        return self.__own

    def write(self, value: float) -> None:
        self.__own = value


def options() -> Any:
    return dataclasses.make_dataclass("Mine", [("scale", float, dataclasses.field(default=2.0))])()


def replaced(name: str, by: Any) -> Callable[[Any], None]:
    return lambda module: setattr(type(module.o), name, by)


def found(module: Any) -> float:
    return 2.0 if module.o in module.table else 3.0


def kept_with_its_key() -> dict[str, Any]:
    key = printed()
    return {"o": key, "table": {key: 1.0}}


def environment(value: str) -> Callable[[Any], None]:
    return lambda module: os.environ.update(OV_BACKEND_TEST=value)


CASES: dict[str, tuple[Callable[[Any], Any], Callable[[], dict[str, Any]], Callable[[Any], Any]]] = {
    "repr": (lambda m: float(repr(m.o)), lambda: {"o": printed()}, replaced("__repr__", lambda self: "3.0")),
    "str, which the class had not": (lambda m: float(str(m.o)), lambda: {"o": printed()}, replaced("__str__", lambda s: "3.0")),
    "format": (lambda m: float(f"{m.o}"), lambda: {"o": printed()}, replaced("__format__", lambda self, text: "3.0")),
    "hash": (found, kept_with_its_key, replaced("__hash__", lambda self: 99)),
    "copy": (lambda m: copy.copy(m.o), lambda: {"o": printed()}, replaced("__copy__", lambda self: 3.0)),
    "the class's items": (lambda m: type(m.o)[1], lambda: {"o": printed()}, replaced("__class_getitem__", lambda item: 3.0)),
    "the class's text": (lambda m: len(m.o.__doc__ or "ab"), lambda: {"o": printed()}, replaced("__doc__", "abc")),
    "an attribute of a function": (lambda m: m.o.scale, lambda: {"o": carrier()}, lambda m: setattr(m.o, "scale", 3.0)),
    "a function's name": (lambda m: float(len(m.o.__name__)), lambda: {"o": carrier()}, lambda m: setattr(m.o, "__name__", "f")),
    "a function's text": (lambda m: len(m.o.__doc__ or "ab"), lambda: {"o": carrier()}, lambda m: setattr(m.o, "__doc__", "abc")),
    "the default of a dataclass's field": (
        lambda m: dataclasses.fields(m.o)[0].default,
        lambda: {"o": options()},
        lambda m: setattr(dataclasses.fields(m.o)[0], "default", 3.0),
    ),
    "a slot of a list": (lambda m: m.o.scale + len(m.o), lambda: {"o": SlottedList()}, lambda m: setattr(m.o, "scale", 3.0)),
    "a private slot": (lambda m: m.o.read(), lambda: {"o": SlottedList()}, lambda m: m.o.write(3.0)),
    "an attribute of a partial": (lambda m: m.o.scale, lambda: {"o": a_partial()}, lambda m: setattr(m.o, "scale", 3.0)),
    "a text of a base": (lambda m: len(inspect.getdoc(type(m.o))), lambda: {"o": described()}, base_with("__doc__", "abc")),
    "the order of a pattern": (matched, lambda: {"o": described()}, base_with("__match_args__", ("other", "scale"))),
    "the signature of a class": (
        lambda m: inspect.signature(type(m.o)).parameters["scale"].default,
        lambda: {"o": described()},
        replaced("__signature__", signature_of(3.0)),
    ),
    "what a copy is made of": (
        lambda m: copy.copy(m.o).scale,
        lambda: {"o": described()},
        base_with("__getnewargs__", lambda self: (3.0,)),
    ),
    "what a copy is made of, with names": (
        lambda m: copy.copy(m.o).scale,
        lambda: {"o": described()},
        base_with("__getnewargs_ex__", lambda self: ((), {"scale": 3.0})),
    ),
    "how a class is copied": (
        lambda m: copy.copy(m.o).scale,
        lambda: {"o": described()},
        lambda m: copyreg.pickle(type(m.o), made_of_3),
    ),
    "the environment": (
        lambda m: float(m.ask("OV_BACKEND_TEST", "2.0")),
        lambda: {"ask": os.getenv},
        environment("3.0"),
    ),
    "the classes that count as sequences": (
        lambda m: 2.0 if isinstance(m.o, collections.abc.Sequence) else 3.0,
        lambda: {"o": type("Mine", (Object,), {})()},
        lambda m: collections.abc.Sequence.register(type(m.o)),
    ),
}


def a_partial() -> Any:
    partial = functools.partial(float)
    partial.scale = 2.0  # type: ignore[attr-defined]
    return partial


@pytest.mark.parametrize("what", CASES)
def test_the_answer_follows(strict: Callable[..., Settings], monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    monkeypatch.delenv("OV_BACKEND_TEST", raising=False)
    read, attributes, change = CASES[what]
    assert_followed(strict, Scaled(read, **attributes()), change)
    os.environ.pop("OV_BACKEND_TEST", None)


DEFAULTS: dict[str, tuple[Any, Callable[[Any], Any], Callable[[Any], Any]]] = {
    "an object": (Object(), lambda value: value.scale, lambda value: setattr(value, "scale", 3.0)),
    "a dict": ({"scale": 2.0}, lambda value: value["scale"], lambda value: value.update(scale=3.0)),
    "a list": ([2.0], lambda value: value[0], lambda value: value.append(value.pop() + 1)),
    "a tensor": (torch.tensor(2.0), lambda value: value, lambda value: value.add_(1)),
}


@pytest.mark.parametrize("what", DEFAULTS)
def test_the_default_of_a_variable_of_contexts_is_followed(strict: Callable[..., Settings], what: str) -> None:
    default, read, change = DEFAULTS[what]
    value = copy.deepcopy(default)
    variable = contextvars.ContextVar(what, default=value)
    module = Scaled(lambda m: read(m.variable.get()), variable=variable)
    assert_followed(strict, module, lambda m: change(value))


def test_what_a_variable_of_contexts_is_set_to_is_followed(strict: Callable[..., Settings]) -> None:
    variable: contextvars.ContextVar[float] = contextvars.ContextVar("scale")
    assert_followed(strict, Scaled(lambda m: m.variable.get(2.0), variable=variable), lambda m: variable.set(3.0))
    assert_followed(strict, Scaled(lambda m: m.variable.get(2.0), variable=variable), lambda m: variable.set(4.0))


class Parent:
    pass


def test_a_forward_that_asks_for_subclasses_stays_in_pytorch(strict: Callable[..., Settings]) -> None:
    module = Scaled(lambda m: float(len(Parent.__subclasses__())) + 1).requires_grad_(False)
    network = engine_for(strict(fallback="pytorch"), module)
    assert_eager(network, module)
    child = types.new_class("Child", (Parent,))
    assert_eager(network, module)
    assert child in Parent.__subclasses__()


def test_an_object_in_a_package_is_followed(strict: Callable[..., Settings], monkeypatch: pytest.MonkeyPatch) -> None:
    option = Object()
    monkeypatch.setattr(torch, "of_the_program", option, raising=False)
    read = lambda m: torch.of_the_program.scale  # type: ignore[attr-defined] # noqa: E731
    assert_followed(strict, Scaled(read), lambda m: setattr(option, "scale", 3.0))
