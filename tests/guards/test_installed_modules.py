"""What a forward does to an installed package's module, which one function finds in ``sys.modules`` and others use."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from ov_backend import Settings
from ov_backend.guards import describe, versions
from tests.helpers.small import engine_for

Strict = Callable[..., Settings]
SOURCE = """
class Box:
    n = 0

counter, scale, items, table, box = 0, 2.0, [], {"a": 2.0}, Box()
"""


def package() -> Any:
    return sys.modules["installed_for_a_test"]


def _count(module: Any) -> float:
    module.counter += 1
    return 1.0


def _collect(module: Any) -> float:
    module.items.append(1)
    return 1.0


def _set_of_an_object(module: Any) -> float:
    module.box.n += 1
    return 1.0


def _set_of_a_class(module: Any) -> float:
    module.Box.n += 1
    return 1.0


def _add_to_a_table(module: Any) -> float:
    module.table[str(len(module.table))] = 1.0
    return 1.0


def _scale(module: Any) -> float:
    module.scale += 1.0
    return float(module.scale)


EFFECTS = [_count, _collect, _set_of_an_object, _set_of_a_class, _add_to_a_table, _scale]


class Using(torch.nn.Module):
    def __init__(self, effect: Callable[[Any], float]) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.effect = effect

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) * self.effect(package())


@pytest.mark.parametrize("name", sorted(describe.FIND_MODELS))
def test_the_functions_that_find_models_find_them_by_name(name: str) -> None:
    pytest.importorskip("transformers", "5")  # earlier versions have not all of them
    function = inspect.unwrap(pkgutil.resolve_name(name))
    assert f"{versions.module_of(function)}.{function.__qualname__}" == name
    assert {"import_module", "modules"}.intersection(function.__code__.co_names)


@pytest.fixture(autouse=True)
def _installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    folder = tmp_path / "site-packages"
    folder.mkdir()
    (folder / "installed_for_a_test.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(folder)
    versions.is_installed.cache_clear()
    importlib.import_module("installed_for_a_test")
    assert versions.is_installed("installed_for_a_test")
    yield
    del sys.modules["installed_for_a_test"]
    versions.is_installed.cache_clear()


def _state() -> tuple[Any, ...]:
    module = package()
    return module.counter, module.scale, list(module.items), dict(module.table), module.box.n, module.Box.n


@pytest.mark.parametrize("effect", EFFECTS, ids=lambda each: each.__name__)
def test_an_effect_comes_about_as_often_as_the_forward_is_called(strict: Strict, effect: Callable[[Any], float]) -> None:
    module, x = Using(effect).eval().requires_grad_(False), torch.ones(2, 4)
    expected = [module(x) for _ in range(3)]
    after = _state()
    importlib.reload(package())
    network = engine_for(strict(fallback="pytorch"), module)
    assert all(torch.equal(network(x), each) for each in expected)
    assert _state() == after


def test_a_value_is_followed(strict: Strict) -> None:
    module, x = Using(lambda package: package.scale).eval().requires_grad_(False), torch.ones(2, 4)
    network = engine_for(strict(), module)
    for scale in (2.0, 3.0):
        package().scale = scale
        torch.testing.assert_close(network(x), module(x), rtol=1e-3, atol=1e-4)
    assert network.statistics.calls == 2


class Loader:
    __slots__ = ("absent", "asked")

    def __init__(self) -> None:
        self.asked: list[str] = []

    def __getattr__(self, name: str) -> Any:
        self.asked.append(name)
        raise AttributeError(name)


def test_what_loaded_a_module_is_not_followed(strict: Strict) -> None:
    package().__loader__ = loader = Loader()
    module, x = Using(lambda package: package.scale).eval().requires_grad_(False), torch.ones(2, 4)
    torch.testing.assert_close(engine_for(strict(), module)(x), module(x), rtol=1e-3, atol=1e-4)
    assert not loader.asked
