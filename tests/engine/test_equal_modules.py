"""A trace of packages' code holds for every equal module; where a module may be told by its address, each is traced."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch

from ov_backend import Settings
from ov_backend.engine.engine import Engine

_PACKAGE = '''
import weakref
import torch

TABLE, WEAK, FIRST, NUMBERS = {}, weakref.WeakKeyDictionary(), [], {}


class Plain(torch.nn.Module):
    def __init__(self, times=2.0):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.times = times

    def forward(self, x):
        return self.linear(x) * self.times


class ByTable(Plain):
    def forward(self, x):
        return self.linear(x) * TABLE.get(self, 1.0)


class ByWeakTable(Plain):
    def forward(self, x):
        return self.linear(x) * WEAK.get(self, 1.0)


class ByBeingFirst(Plain):
    def forward(self, x):
        return self.linear(x) * (2.0 if FIRST and FIRST[0] is self else 1.0)


class ByNumber(Plain):
    def forward(self, x):
        return self.linear(x) * NUMBERS.get(id(self), 1.0)


class ByHash(Plain):
    def forward(self, x):
        return self.linear(x) * NUMBERS.get(hash(self), 1.0)


class ByItsPart(Plain):
    def forward(self, x):
        return self.linear(x) * TABLE.get(self.linear, 1.0)


def tell(module, times):
    """Tell the package of a module, as its forwards ask for one."""
    TABLE[module] = TABLE[module.linear] = WEAK[module] = NUMBERS[id(module)] = NUMBERS[hash(module)] = times
    FIRST[:] = [module]
'''
_TELLING = ("ByTable", "ByWeakTable", "ByBeingFirst", "ByNumber", "ByHash", "ByItsPart")


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The package above, installed."""
    folder = tmp_path / "site-packages"
    folder.mkdir()
    (folder / "zz_equal_modules.py").write_text(_PACKAGE)
    monkeypatch.syspath_prepend(str(folder))
    yield importlib.import_module("zz_equal_modules")
    del sys.modules["zz_equal_modules"]


def _made(cls: Callable[[], torch.nn.Module], seed: int = 0) -> torch.nn.Module:
    torch.manual_seed(seed)
    return cls().eval()


def _captures(modules: list[torch.nn.Module]) -> list[int]:
    """How often each was traced, called twice and one after the other; their answers are PyTorch's."""
    engine, captures, x = Engine(Settings(precision="f32", cache_dir=None, fallback="raise")), [], torch.randn(2, 4)
    with torch.no_grad():
        for number, module in enumerate(modules):
            network = engine.network(f"network {number}", module)
            for _ in range(2):
                torch.testing.assert_close(network(x), module(x), rtol=1e-4, atol=1e-5)
            captures.append(network.statistics.captures)
    return captures


def test_an_equal_module_needs_no_trace(package: ModuleType) -> None:
    assert _captures([_made(package.Plain), _made(package.Plain), _made(package.Plain, 1)]) == [1, 0, 0]


def test_another_number_is_another_trace(package: ModuleType) -> None:
    assert _captures([_made(package.Plain), _made(lambda: package.Plain(3.0))]) == [1, 1]


@pytest.mark.parametrize("name", _TELLING)
@pytest.mark.parametrize("told", [(0,), (1,), (0, 1), (1, 0)], ids=str)
def test_a_module_that_its_package_knows_gets_its_own_answer(package: ModuleType, name: str, told: tuple[int, ...]) -> None:
    modules = [_made(getattr(package, name)) for _ in range(2)]
    for number in told:
        package.tell(modules[number], 2.0 + number)
    _captures(modules)


class _Program(torch.nn.Module):
    """A class of a program, not of a package."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2


def test_modules_of_a_program_are_traced_one_by_one() -> None:
    assert _captures([_Program(), _Program()]) == [1, 1]


def test_a_hook_of_the_program_has_its_module_traced(package: ModuleType) -> None:
    modules = [_made(package.Plain) for _ in range(2)]
    modules[1].linear.register_forward_hook(lambda module, args, result: result + 1)
    assert _captures(modules) == [1, 1]
