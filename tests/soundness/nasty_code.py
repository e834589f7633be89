"""Small modules that run code from elsewhere: helpers, closures, decorators, hooks, classes."""

from __future__ import annotations

import contextlib
import functools
import itertools
import operator
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from tests.soundness.case import Case
from tests.soundness.nasty import Base, X, made, nasty

SCALE = 2.0
SHIFTS = (0.5, 0.25)
TABLE: dict[str, Any] = {"scale": 1.5, "inner": {"power": 2}, "names": ["a", "b"]}
TENSOR = torch.linspace(1, 2, 4)


def helper(x: torch.Tensor) -> torch.Tensor:
    return inner_helper(x) * SCALE + SHIFTS[0]


def inner_helper(x: torch.Tensor, factor: float = 1.5) -> torch.Tensor:
    return x * factor * TABLE["scale"] ** TABLE["inner"]["power"]


@nasty
def globals_and_helpers() -> Case:
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = helper(self.linear(x)) * TENSOR
        return y if "b" in TABLE["names"] else -y

    return Case(made(forward), (X,))


@nasty
def closures() -> Case:
    strength, numbers, tensor = 2.0, [1.0, 3.0], torch.linspace(0, 1, 4)

    def scale(x: torch.Tensor) -> torch.Tensor:
        return x * strength + numbers[1]

    def outer() -> Callable[[torch.Tensor], torch.Tensor]:
        local = 0.75
        return lambda x: scale(x) * local + tensor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(self.linear(x))

    return Case(made(forward, function=outer()), (X,))


@nasty
def default_arguments() -> Case:
    class Module(Base):
        def scaled(self, x: torch.Tensor, by: float = 2.0, *, plus: tuple[float, ...] = (1.0, 2.0)) -> torch.Tensor:
            return x * by + plus[1]

        def forward(self, x: torch.Tensor, times: int = 2, options: Any = types.MappingProxyType({"a": 1.5})) -> torch.Tensor:
            for _ in range(times):
                x = self.scaled(self.linear(x))
            return x * options["a"]

    return Case(Module(), (X,))


@nasty
def properties() -> Case:
    class Module(Base):
        def __init__(self) -> None:
            super().__init__()
            self._scale, self._steps = 1.5, [1.0, 2.0]

        @property
        def scale(self) -> float:
            return self._scale * type(self).gain

        @functools.cached_property
        def total(self) -> float:
            return sum(self._steps)

        @classmethod
        def of_class(cls) -> float:
            return cls.gain * 2

        @staticmethod
        def static() -> float:
            return SCALE

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.linear(x) * self.scale + self.total + self.of_class() * self.static()

    module = Module()
    return Case(module, (X,), reset=lambda: vars(module).pop("total", None))


def powered(x: torch.Tensor, exponent: int, *, plus: float = 0.0) -> torch.Tensor:
    return x**exponent + plus


@nasty
def partials() -> Case:
    class Module(Base):
        def __init__(self) -> None:
            super().__init__()
            self.function = functools.partial(powered, exponent=2, plus=0.5)
            self.method = functools.partial(self.scaled, by=[2.0])
            self.pick = operator.itemgetter(1)

        def scaled(self, x: torch.Tensor, by: list[float]) -> torch.Tensor:
            return x * by[0]

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.function(self.method(self.linear(x))) + self.pick((1.0, 2.0))

    return Case(Module(), (X,))


class Hook:
    """A hook with a state."""

    def __init__(self, scale: float) -> None:
        self.scale = scale

    def __call__(self, module: Any, args: Any, result: torch.Tensor) -> torch.Tensor:
        return result * self.scale

    def before(self, module: Any, args: Any) -> Any:
        return (args[0] + self.scale,)


def scaling_hook(scale: float) -> Callable[..., Any]:
    return lambda module, args, result: result * scale


@nasty
def hooks() -> Case:
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.tanh(self.linear(x)))

    module = made(forward, second=nn.Linear(4, 4))
    module.linear.register_forward_hook(scaling_hook(2.0))
    module.second.register_forward_hook(scaling_hook(0.5))
    module.second.register_forward_hook(Hook(1.5))
    module.second.register_forward_pre_hook(Hook(0.25).before)
    return Case(module, (X,))


class Mixed:
    factor = 1.5
    table = {"a": 2.0}

    def mix(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.factor + self.table["a"]


@nasty
def class_attributes() -> Case:
    class Module(Mixed, Base):
        order = ("linear", "linear")
        weight = torch.linspace(0, 1, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for name in self.order:
                x = self.mix(getattr(self, name)(x))
            return x * self.gain + self.weight

    return Case(Module(), (X,))


class Middle(Base):
    def shift(self) -> float:
        return super().shift() * 2

    def scaled(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.factor()

    def factor(self) -> float:
        return 1.5


@nasty
def inherited_methods() -> Case:
    class Module(Middle):
        def factor(self) -> float:
            return super().factor() + 0.5

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.scaled(self.linear(x)) + self.shift()

    return Case(Module(), (X,))


def times(factor: float) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs) * factor

        return wrapped

    return decorate


@nasty
def wrapped_functions() -> Case:
    class Module(Base):
        scale = 1.5

        @times(2.0)
        @torch.no_grad()
        def scaled(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.scale

        @times(0.5)
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.scaled(self.linear(x))

    return Case(Module(), (X,))


class Act:
    """A callable object that is no module."""

    def __init__(self, kind: str) -> None:
        self.kind, self.slope = kind, 0.25

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return getattr(self, f"_{self.kind}")(x)

    def _leaky(self, x: torch.Tensor) -> torch.Tensor:
        return F.leaky_relu(x, self.slope)

    def _hard(self, x: torch.Tensor) -> torch.Tensor:
        return x.clamp(-self.slope, self.slope)


@nasty
def callable_objects() -> Case:
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.acts["second"](self.linear(self.acts["first"](x)))

    return Case(made(forward, acts={"first": Act("leaky"), "second": Act("hard")}), (X,))


class Scale(torch.autograd.Function):
    factor = 1.5

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * Scale.factor

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0] * Scale.factor


@contextlib.contextmanager
def doubled(module: Any) -> Iterator[float]:
    yield 2.0 * module.gain


@nasty
def managers_and_functions() -> Case:
    class Module(Base):
        def parts(self, x: torch.Tensor) -> Iterator[torch.Tensor]:
            for number in itertools.islice((1, 2, 3), 2):
                yield x * number

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with doubled(self) as factor:
                y = Scale.apply(self.linear(x)) * factor
            return sum(self.parts(y), start=torch.zeros(4))

    return Case(Module(), (X,))


class Later(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 1.5


@nasty
def modules_made_in_forward() -> Case:
    class Module(Base):
        kind = Later

        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleDict({"a": nn.Linear(4, 4), "b": nn.Identity()})
            self.route = ["a", "b", "a"]

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for name in self.route:
                x = self.layers[name](x)
            return self.kind()(self.linear(x))

    return Case(Module(), (X,))
