"""A forward that does more than compute stays in PyTorch, and a trace leaves nothing of itself behind."""

from __future__ import annotations

import functools
import gc
import importlib.util
import math
import pathlib
import random
import sys
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
import torch
from torch._subclasses import FakeTensorMode

from ov_backend import Settings
from ov_backend.trace.capture import impure, observer, trace_detection
from ov_backend.trace.capture.observer import Observer
from tests.helpers.small import engine_for

Strict = Callable[..., Settings]
X = torch.linspace(-1, 1, 12).reshape(3, 4)


class Counting(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return x * self.calls


class Collecting(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features: list[torch.Tensor] = []
        self.last: torch.Tensor | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.features.append(x * 2)
        return x + 1


class Remembering(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before = torch.zeros(3, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result = x + self.before
        self.before = x
        return result


class Drawing(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * random.random()


class Growing(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.parts = torch.nn.ModuleList()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.parts.append(torch.nn.Identity())
        return x * len(self.parts)


class Moving(torch.nn.Module):
    """A weight gets other memory at every call, which no operator of the trace shows."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(4), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.weight.data = self.weight.data * 2
        return x * self.weight


class MovingItsInput(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x.data = x.data * 2
        return x + 1


DELETED: list[int] = []


class Deleted:
    def __del__(self) -> None:
        DELETED.append(1)


class Deleting(torch.nn.Module):
    """Makes an object that does something when it goes."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        Deleted()
        return x * 2


def test_what_an_object_does_when_it_goes_is_done_once_a_call(strict: Strict) -> None:
    network = engine_for(strict(fallback="pytorch"), Deleting())
    DELETED.clear()
    for number in range(1, 4):
        torch.testing.assert_close(network(X), X * 2)
        assert len(DELETED) == number
    assert network.statistics.calls == 0


@pytest.mark.parametrize(
    "kind",
    [Counting, Collecting, Remembering, Drawing, Growing, Moving, MovingItsInput],
)
def test_a_forward_with_side_effects_stays_in_pytorch(strict: Strict, kind: type[torch.nn.Module]) -> None:
    module, reference = kind(), kind()
    network = engine_for(strict(fallback="pytorch"), module)
    for number in range(4):
        random.seed(number)
        answer = network(X * number)
        random.seed(number)
        torch.testing.assert_close(answer, reference(X * number))
    assert network.statistics.calls == 0
    assert network.statistics.fallbacks.total() == 4
    if isinstance(module, Collecting):
        assert [type(feature) for feature in module.features] == [torch.Tensor] * 4
    if isinstance(module, Counting):
        assert module.calls == 4


class Slicing(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.parts = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for part in self.parts[:-1]:
            x = part(x)
        return x


def test_a_slice_of_a_list_of_modules_is_no_effect(strict: Strict) -> None:
    module = Slicing()
    network = engine_for(strict(), module)
    torch.testing.assert_close(network(X), module(X), rtol=1e-3, atol=1e-5)
    assert network.statistics.calls == 1


class Asserting(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        torch._assert_async(x.max() < 3)
        return x * 2


def test_an_assertion_about_values_is_made_at_every_call(strict: Strict) -> None:
    network = engine_for(strict(fallback="pytorch"), Asserting())
    torch.testing.assert_close(network(X), X * 2)
    with pytest.raises(RuntimeError):
        network(X * 9)
    assert "asserts something" in next(iter(network.statistics.fallbacks))


@functools.lru_cache
def _angles(count: int) -> torch.Tensor:
    return torch.arange(count).float() / count


def test_a_trace_leaves_nothing_in_the_cache_of_a_function(strict: Strict) -> None:
    class Rotating(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + _angles(x.shape[1])

    network, module = engine_for(strict(fallback="pytorch"), Rotating()), Rotating()
    for _ in range(2):
        torch.testing.assert_close(network(X), module(X))
        assert type(_angles(X.shape[1])) is torch.Tensor


def test_who_looks_for_a_package_is_no_code_of_the_forward(monkeypatch: pytest.MonkeyPatch) -> None:
    class Finder:
        def find_spec(self, name: str, path: object = None, target: object = None) -> None:
            (lambda: None)()  # as that of setuptools does

    monkeypatch.setattr(sys, "meta_path", [Finder(), *sys.meta_path])
    with Observer() as observer:
        assert importlib.util.find_spec("no_such_package_here") is None
    assert not {"find_spec", "<lambda>"} & {code.co_name for code in observer.executed if code.co_filename == __file__}


def test_what_a_module_does_when_it_is_imported_is_no_code_of_the_forward(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "imported_in_a_trace.py").write_text("import time\nNOW = time.time()\ndef f():\n    return 2.0\nf()\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with Observer() as observer:
        import imported_in_a_trace  # type: ignore[import-not-found]

        imported_in_a_trace.f()
    assert "calls time.time" not in observer.effects
    names = [code.co_name for code, module in observer.executed.items() if module == "imported_in_a_trace"]
    assert names == ["f"], "only what the forward itself calls"


def test_no_function_that_counts_is_taken_for_a_method_of_a_plain_value() -> None:
    known = {*impure._IMPURE, *trace_detection.ASKS_TRACE}
    modules = [sys.modules[name] for name in impure._ACTING if name in sys.modules]
    functions = [each for module in modules for each in vars(module).values() if type(each) is type(len)]
    functions += [each for each in gc.get_objects() if type(each) is type(len) and id(each) in known]
    assert len(functions) > len(known) / 2
    assert not [each for each in functions if id(type(each.__self__)) in observer.PLAIN]


class Noting(Observer):
    """Notes which functions written in C it has looked at."""

    def __init__(self) -> None:
        super().__init__()
        self.looked_at = list[str]()

    def _call_c(self, frame: FrameType, function: Any, owner: Any) -> None:
        self.looked_at.append(function.__name__)
        super()._call_c(frame, function, owner)


def test_a_function_that_only_computes_is_looked_at_once_and_one_that_acts_always() -> None:
    with Noting() as watching:
        for _ in range(3):
            math.sqrt(2.0)
            "a".join(["b"])
            time.time()
    counts = {name: watching.looked_at.count(name) for name in ("sqrt", "join", "time")}
    assert counts == {"sqrt": 1, "join": 0, "time": 3}
    assert watching.effects == ["calls time.time"] * 3


def test_code_that_is_equal_to_other_code_is_looked_at_for_the_same() -> None:
    copies = [compile("def f(x):\n    return type(x)\n", "a test", "exec") for _ in range(2)]
    spaces: list[dict[str, Any]] = [{"__name__": __name__} for _ in copies]
    for copy, space in zip(copies, spaces):
        exec(copy, space)
    first, second = (space["f"] for space in spaces)
    assert first.__code__ == second.__code__
    assert first.__code__ is not second.__code__
    with FakeTensorMode():
        fake = torch.zeros(1)
    with Observer() as watching:
        first(1.0)
        second(fake)
    assert watching.effects == ["asks for the class of a tensor"]
    with Observer() as watching:
        first(1.0)
    assert not watching.effects
