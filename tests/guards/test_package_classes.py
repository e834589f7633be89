"""What programs put on classes of packages, and into PyTorch's own modules and operators, does not go unseen."""

from __future__ import annotations

import collections
import copy
import functools
import gc
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from ov_backend import Settings
from tests.helpers.readers import Object, Scaled, X, assert_eager, assert_followed
from tests.helpers.small import engine_for

Strict = Callable[..., Settings]

#: How a value is put on a class, and read there again.
KINDS: dict[str, tuple[Callable[[float], Any], Callable[[Any], Any]]] = {
    "a number": (lambda value: value, lambda found: found),
    "a list": (lambda value: [value], lambda found: found[0]),
    "a tensor": (lambda value: torch.tensor(value), lambda found: found),
    "a property": (lambda value: property(lambda self: value), lambda found: found),
    "a static method": (lambda value: staticmethod(lambda: value), lambda found: found()),
    "a partial": (lambda value: functools.partial(float, value), lambda found: found()),
    "a namespace": (lambda value: types.SimpleNamespace(a=value), lambda found: found.a),
    "an object": (Object, lambda found: found.scale),
    "a class": (lambda value: type("Mine", (), {"scale": value}), lambda found: found.scale),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_value_on_a_class_of_torch(strict: Strict, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    make, read = KINDS[kind]
    monkeypatch.setattr(torch.nn.Linear, "of_the_program", make(2.0), raising=False)
    module = Scaled(lambda m: read(m.linear.of_the_program))
    assert_followed(strict, module, lambda m: setattr(torch.nn.Linear, "of_the_program", make(3.0)))


CLASSES: dict[str, tuple[type, Callable[[Any], Any]]] = {
    "of all modules": (torch.nn.Module, lambda m: m.of_the_program),
    "of a base, by the derived one": (torch.nn.Module, lambda m: torch.nn.Linear.of_the_program),
    "of tensors": (torch.Tensor, lambda m: torch.Tensor.of_the_program),
    "of weights": (torch.nn.Parameter, lambda m: m.linear.weight.of_the_program),
    "of Python's library": (collections.UserDict, lambda m: collections.UserDict.of_the_program),  # type: ignore[attr-defined]
}


@pytest.mark.parametrize("which", CLASSES)
def test_a_value_on_a_class(strict: Strict, monkeypatch: pytest.MonkeyPatch, which: str) -> None:
    cls, read = CLASSES[which]
    monkeypatch.setattr(cls, "of_the_program", 2.0, raising=False)
    assert_followed(strict, Scaled(read), lambda m: setattr(cls, "of_the_program", 3.0))


IN_PLACE: dict[str, tuple[Callable[[], Any], Callable[[Any], Any], Callable[[Any], Any]]] = {
    "a namespace": (lambda: types.SimpleNamespace(a=2.0), lambda found: found.a, lambda found: setattr(found, "a", 3.0)),
    "a dict": (lambda: {"a": 2.0}, lambda found: found["a"], lambda found: found.update(a=3.0)),
    "an array": (lambda: np.full(1, 2.0), lambda found: float(found[0]), lambda found: found.fill(3.0)),
}


@pytest.mark.parametrize("kind", IN_PLACE)
def test_a_value_on_a_class_of_torch_that_changes_in_place(strict: Strict, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    make, read, change = IN_PLACE[kind]
    value = make()
    monkeypatch.setattr(torch.nn.Linear, "of_the_program", value, raising=False)
    assert_followed(strict, Scaled(lambda m: read(m.linear.of_the_program)), lambda m: change(value))


def test_the_switch_of_distributions(strict: Strict) -> None:
    from torch.distributions import Distribution, Normal

    before = Distribution._validate_args
    try:
        module = Scaled(lambda m: 2.0 if Normal._validate_args else 3.0)
        assert_followed(strict, module, lambda m: Distribution.set_default_validate_args(not before))
    finally:
        Distribution.set_default_validate_args(before)


@pytest.mark.parametrize("name", ["F", "torch"])
def test_another_namespace_in_one_of_torchs_modules(strict: Strict, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    module = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.GELU()).requires_grad_(False)
    network = engine_for(strict(fallback="pytorch"), module)
    assert_eager(network, module)
    assert network.statistics.calls == 1
    functions = types.SimpleNamespace(gelu=lambda x, approximate: x * 3)
    monkeypatch.setattr(torch.nn.modules.activation, name, functions)
    assert_eager(network, module)
    assert "activation" in next(iter(network.statistics.fallbacks))
    monkeypatch.undo()
    assert_eager(network, module)
    assert network.statistics.calls == 2


def test_another_kernel_of_an_operator(strict: Strict) -> None:
    module = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.GELU()).requires_grad_(False)
    network = engine_for(strict(fallback="pytorch"), module)
    assert_eager(network, module)
    assert network.statistics.calls == 1
    library = torch.library.Library("aten", "IMPL")
    try:
        library.impl("gelu", lambda x, approximate="none": x * 3, "CPU")
        torch.testing.assert_close(network(X), module[0](X) * 3)
    finally:
        getattr(library, "_destroy", int)()  # PyTorch 2.1 waits for the object's end
        del library
        gc.collect()
    assert "gelu" in next(iter(network.statistics.fallbacks))
    assert_eager(network, module)
    assert network.statistics.calls == 2


def test_a_kernel_that_is_listed_and_not_there(strict: Strict, monkeypatch: pytest.MonkeyPatch) -> None:
    network = engine_for(strict(), torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.GELU()).requires_grad_(False))
    # PyTorch 2.3 has the name of an own kernel, which it has taken out again, in this list
    monkeypatch.setattr(torch.library, "_impls", {*torch.library._impls, "aten/gelu/CompositeImplicitAutograd"})
    network(X)
    assert network.statistics.calls == 1


def test_a_kernel_that_comes_while_another_one_goes(strict: Strict) -> None:
    module = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.GELU()).requires_grad_(False)
    network = engine_for(strict(fallback="pytorch"), module)
    own, library = torch.library.Library("goes_again", "DEF"), torch.library.Library("aten", "IMPL")
    try:
        own.define("same(Tensor x) -> Tensor")
        own.impl("same", lambda x: x, "CPU")
        assert_eager(network, module)
        assert network.statistics.calls == 1
        library.impl("gelu", lambda x, approximate="none": x * 3, "CPU")
        torch.library._impls.remove(next(key for key in torch.library._impls if "goes_again" in key))
        torch.testing.assert_close(network(X), module[0](X) * 3)
    finally:
        for each in (own, library):
            getattr(each, "_destroy", int)()  # PyTorch 2.1 waits for the objects' end
        del each, own, library
        gc.collect()


def test_what_python_and_pytorch_note_on_classes_is_of_no_matter(strict: Strict) -> None:
    network = engine_for(strict(), torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.GELU()).eval())
    x = torch.randn(2, 4)
    with torch.no_grad():
        network(x)
        copy.deepcopy(torch.nn.Parameter(x))
        torch.compile(torch.nn.Linear(4, 4), backend="eager")(x)
        network.module.register_forward_hook(lambda *_: None).remove()
        network(x)
    assert network.statistics.captures == 1


class ByComputedNames(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * getattr(self, "scale_of_" + str(len(x.shape)))

    @property
    def scale_of_2(self) -> float:
        return 2.0


@pytest.mark.parametrize("package,captures", [("transformers.loading", 1), ("mine.loading", 2)])
def test_helpers_that_packages_put_on_classes_when_they_load_a_model(
    strict: Strict, monkeypatch: pytest.MonkeyPatch, package: str, captures: int
) -> None:
    network, x = engine_for(strict(), ByComputedNames().eval()), torch.randn(2, 4)
    with torch.no_grad():
        network(x)
        helper = types.FunctionType((lambda module: module).__code__, {"__name__": package})
        monkeypatch.setattr(torch.nn.Module, "smart_helper", helper, raising=False)
        network(x)
    assert network.statistics.captures == captures
