"""Objects that are written in C: what of them can be compared is, and the others stay in PyTorch."""

from __future__ import annotations

import array
import datetime
import decimal
import inspect
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from ov_backend import Settings
from tests.helpers.readers import Object, Scaled, assert_eager, assert_followed
from tests.helpers.small import engine_for

Strict = Callable[..., Settings]
Case = tuple[Callable[[], Any], Callable[[Any], Any], Callable[[Any], Any]]


class Held:
    scale = 2.0


class Exact(decimal.Decimal):
    """A number of a class of its own."""


class Precise(np.float32):
    """A number of numpy's with attributes."""


def precise() -> Any:
    made = Precise(1.0)
    made.scale = 2.0  # type: ignore[attr-defined]
    return made


def with_default(default: Any) -> inspect.Signature:
    return inspect.signature(lambda a=default: a)


def plain() -> Any:
    """A function without attributes of its own."""
    return lambda x: x


def holder() -> type:
    return type("Holder", (), {"scale": 2.0})


def annotated(cls: type) -> inspect.Signature:
    return inspect.Signature([inspect.Parameter("a", inspect.Parameter.KEYWORD_ONLY, annotation=cls)])


FOLLOWED: dict[str, Case] = {
    "an attribute that a function gets": (plain, lambda o: getattr(o, "scale", 1.0), lambda o: setattr(o, "scale", 3.0)),
    "the class of an annotation": (
        lambda: annotated(holder()),
        lambda o: o.parameters["a"].annotation.scale,
        lambda o: setattr(o.parameters["a"].annotation, "scale", 3.0),
    ),
    "the class behind its alias": (
        lambda: types.GenericAlias(holder(), (int,)),
        lambda o: o.scale,
        lambda o: setattr(o.__origin__, "scale", 3.0),
    ),
    "a list in a slice": (lambda: slice(0, [2.0]), lambda o: o.stop[0], lambda o: o.stop.append(o.stop.pop() + 1)),
    "an object in a slice": (lambda: slice(Object()), lambda o: o.stop.scale, lambda o: setattr(o.stop, "scale", 3.0)),
    "a default in a signature": (
        lambda: with_default([2.0]),
        lambda o: o.parameters["a"].default[0],
        lambda o: o.parameters["a"].default.append(o.parameters["a"].default.pop() + 1),
    ),
}


@pytest.mark.parametrize("what", FOLLOWED)
def test_it_is_followed(strict: Strict, what: str) -> None:
    make, read, change = FOLLOWED[what]
    assert_followed(strict, Scaled(lambda m: read(m.o), o=make()), lambda m: change(m.o))


REFUSED: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "a scalar with fields": (lambda: np.ones(1, [("s", "f4")])[0], lambda o: float(o["s"])),
    "a record": (lambda: np.rec.array([(1.0,)], dtype=[("s", "f4")])[0], lambda o: float(o.s)),
    "a scripted list": (lambda: torch.jit.script([1.0]), lambda o: o[0]),
    "a scripted dict": (lambda: torch.jit.script({"a": 1.0}), lambda o: o["a"]),
    "a future": (torch.futures.Future, lambda o: 2.0 if o.done() else 1.0),
    "a storage": (lambda: torch.ones(1).untyped_storage(), lambda o: float(o[3])),
    "a bit generator": (lambda: np.random.PCG64(3), lambda o: o.state["state"]["state"] % 1000),
    "an error's arguments": (lambda: ValueError(2.0), lambda o: o.args[0]),
    "an error's number": (lambda: OSError(1, "a"), lambda o: float(o.errno)),
    "an error's cause": (ValueError, lambda o: 5.0 if o.__cause__ else 1.0),
    "an exit's code": (lambda: SystemExit(1), lambda o: float(o.code)),
    "the end of an iteration": (lambda: StopIteration(1), lambda o: float(o.value)),
    "a class in an annotation": (lambda: dict[str, Held], lambda o: o.__args__[1].scale),
    "an attribute of a number": (precise, lambda o: o.scale),
    "bytes that can be written": (lambda: bytearray(b"\2"), lambda o: float(o[0])),
    "numbers that can be written": (lambda: array.array("d", [2.0]), lambda o: o[0]),
    "a date": (lambda: datetime.date(2000, 1, 2), lambda o: float(o.day)),
    "a decimal number": (lambda: decimal.Decimal(2), float),
    "a decimal number of a class of its own": (lambda: Exact(2), float),
    "an object in an array": (lambda: np.array([Object(), None], dtype=object), lambda o: o[0].scale),
    "what a closure holds": (lambda: types.CellType(2.0), lambda o: o.cell_contents),
    "a function as one of numpy's": (lambda: np.frompyfunc(Object().strength, 0, 1), lambda o: float(o())),
}


@pytest.mark.parametrize("what", REFUSED)
def test_it_stays_in_pytorch(strict: Strict, what: str) -> None:
    make, read = REFUSED[what]
    module = Scaled(lambda m: read(m.o), o=make())
    network = engine_for(strict(fallback="pytorch"), module)
    assert_eager(network, module)
    assert network.statistics.calls == 0


SCRIPTED = torch.jit.script([2.0])


def test_a_global_one_that_is_passed_on_stays_in_pytorch(strict: Strict) -> None:
    module = Scaled(lambda m: SCRIPTED[0])
    network = engine_for(strict(fallback="pytorch"), module)
    assert_eager(network, module)
    assert network.statistics.calls == 0


@pytest.mark.parametrize(
    "value", [np.dtype("f4"), np.add, np.concatenate, torch.finfo(torch.float32), torch.qint8, torch.per_tensor_affine]
)
def test_constants_are_computed(strict: Strict, value: Any) -> None:
    module = Scaled(lambda m: 2.0 if m.o is not None else 3.0, o=value)
    network = engine_for(strict(), module)
    assert_eager(network, module)
    assert network.statistics.calls == 1


@pytest.mark.parametrize("what", REFUSED)
def test_it_stays_in_pytorch_where_its_name_is_computed(strict: Strict, what: str) -> None:
    make, read = REFUSED[what]
    module = Scaled(lambda m: read(getattr(m, "held_" + m.end)), held_here=make(), end="here")
    network = engine_for(strict(fallback="pytorch"), module)
    assert_eager(network, module)
    assert network.statistics.calls == 0


def test_a_generator_that_nothing_names_is_no_reason_where_names_are_computed(strict: Strict) -> None:
    module = Scaled(lambda m: getattr(m, "held_" + m.end), held_here=2.0, end="here", info={"generator": torch.Generator()})
    network = engine_for(strict(), module)
    assert_eager(network, module)
    assert network.statistics.calls == 1


def test_the_seed_of_a_generator_is_left_to_pytorch_where_its_name_is_computed(strict: Strict) -> None:
    def read(module: torch.nn.Module) -> float:
        return float(getattr(module, "held_" + module.end).initial_seed() % 7)  # type: ignore[operator]

    generator = torch.Generator()
    network = engine_for(strict(fallback="pytorch"), module := Scaled(read, held_here=generator, end="here"))
    for seed in (3, 5):
        generator.manual_seed(seed)
        assert_eager(network, module)
    assert network.statistics.calls == 0
