"""Small modules, each with another way to read something that is no weight."""

from __future__ import annotations

import collections
import contextlib
import contextvars
import dataclasses
import enum
import functools
import itertools
import operator
import random
import types
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from tests.soundness.case import Builder, Case

X = torch.linspace(-1, 1, 12).reshape(3, 4)
SCALE = 2.0
SHIFTS = (0.5, 0.25)
TABLE: dict[str, Any] = {"scale": 1.5, "inner": {"power": 2}, "names": ["a", "b"]}
TENSOR = torch.linspace(1, 2, 4)
STRENGTH: contextvars.ContextVar[float] = contextvars.ContextVar("strength", default=2.0)
REGISTRY: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {"relu": F.relu, "own": lambda x: x * 0.5}

NASTY: dict[str, Builder] = {}


def nasty(build: Callable[[], Case]) -> Callable[[], Case]:
    """Keep a builder under its name; weights are seeded."""

    def seeded() -> Case:
        torch.manual_seed(0)
        case = build()
        case.module.eval()
        return case

    NASTY[build.__name__.replace("_", " ")] = seeded
    return build


class Base(nn.Module):
    """A linear layer, and whatever a subclass adds."""

    gain = 1.25

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def shift(self) -> float:
        return 0.125


def helper(x: torch.Tensor) -> torch.Tensor:
    return inner_helper(x) * SCALE + SHIFTS[0]


def inner_helper(x: torch.Tensor, factor: float = 1.5) -> torch.Tensor:
    return x * factor * TABLE["scale"] ** TABLE["inner"]["power"]


@nasty
def globals_and_helpers() -> Case:
    class Module(Base):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = helper(self.linear(x)) * TENSOR
            return y if "b" in TABLE["names"] else -y

    return Case(Module(), (X,))


@nasty
def closures() -> Case:
    strength, numbers, tensor = 2.0, [1.0, 3.0], torch.linspace(0, 1, 4)

    def scale(x: torch.Tensor) -> torch.Tensor:
        return x * strength + numbers[1]

    def outer() -> Callable[[torch.Tensor], torch.Tensor]:
        local = 0.75
        return lambda x: scale(x) * local + tensor

    class Module(Base):
        def __init__(self) -> None:
            super().__init__()
            self.function = outer()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.function(self.linear(x))

    return Case(Module(), (X,))


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


class Config:
    """As transformers' configurations are: a plain object with defaults on its class."""

    use_bias = True
    act = "relu"

    def __init__(self, **values: Any) -> None:
        self.scale, self.layers, self.extra = 1.5, 2, {"eps": 0.5}
        self.__dict__.update(values)

    def get(self, name: str) -> Any:
        return getattr(self, name)


@nasty
def config_object() -> Case:
    class Module(Base):
        def __init__(self) -> None:
            super().__init__()
            self.config = Config(power=2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for _ in range(self.config.layers):
                x = REGISTRY[self.config.act](self.linear(x)) * self.config.get("scale") + self.config.extra["eps"]
            return x**self.config.power if self.config.use_bias else x

    return Case(Module(), (X,))


@dataclasses.dataclass
class Inner:
    power: int = 2
    values: list[float] = dataclasses.field(default_factory=lambda: [0.5, 2.0])


@dataclasses.dataclass(frozen=True)
class Frozen:
    scale: float = 1.5
    inner: Inner = dataclasses.field(default_factory=Inner)


@nasty
def dataclasses_in_dataclasses() -> Case:
    class Module(Base):
        def __init__(self) -> None:
            super().__init__()
            self.options = Frozen()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (self.linear(x) * self.options.scale) ** self.options.inner.power + sum(self.options.inner.values)

    return Case(Module(), (X,))


class Mode(enum.Enum):
    SOFT = 0.5
    HARD = 2.0

    def factor(self) -> float:
        return self.value * 3


class Bits(enum.IntFlag):
    A = 1
    B = 2


@nasty
def enums() -> Case:
    class Module(Base):
        def __init__(self) -> None:
            super().__init__()
            self.mode, self.bits, self.table = Mode.SOFT, Bits.A | Bits.B, {Mode.SOFT: 1.0, Mode.HARD: 4.0}

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.linear(x) * self.mode.factor() + self.table[self.mode]
            return y * 2 if Bits.B in self.bits else y

    return Case(Module(), (X,))


@nasty
def lists_of_tensors() -> Case:
    class Module(Base):
        def __init__(self) -> None:
            super().__init__()
            self.scales = [torch.linspace(0, 1, 4), torch.linspace(1, 2, 4)]
            self.named = {"a": torch.full((4,), 0.5), "deep": [(torch.tensor(2.0),)]}
            self.hidden = [nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), nn.Tanh())]

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.linear(x) * self.scales[1] + self.named["a"] * self.named["deep"][0][0]
            for layer in self.hidden:
                y = layer(y)
            return y + self.scales[0].sum()

    return Case(Module(), (X,))


@nasty
def counters() -> Case:
    class Module(Base):
        def __init__(self) -> None:
            super().__init__()
            self.calls, self.limit, self.seen = 0, 3, collections.Counter[str]()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            self.seen["call"] += 1
            return self.linear(x) * (self.calls % self.limit + 1) + self.seen["call"]

    module = Module()

    def reset() -> None:
        module.seen.clear()
        module.calls = 0

    return Case(module, (X,), reset=reset, repeats=3)


@nasty
def numpy_arrays() -> Case:
    class Module(Base):
        def __init__(self) -> None:
            super().__init__()
            self.array, self.number = np.array([0.5, 1.5, 2.5, 3.5], dtype=np.float32), np.float32(1.5)
            self.order, self.kinds = np.array([3, 1, 2, 0]), np.array(["a", "b"], dtype=object)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.linear(x)[:, torch.from_numpy(self.order)] * float(self.number) + float(self.array[2])
            return y * torch.as_tensor(self.array) if self.kinds[1] == "b" else y

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


class Proxy:
    """Finds attributes in a table, as option objects do."""

    def __init__(self, **values: Any) -> None:
        object.__setattr__(self, "_values", values)

    def __getattr__(self, name: str) -> Any:
        try:
            return object.__getattribute__(self, "_values")[name]
        except KeyError:
            raise AttributeError(name) from None


@nasty
def getattr_methods() -> Case:
    class Module(Base):
        def __init__(self) -> None:
            super().__init__()
            self.proxy = Proxy(scale=1.5, shift=[0.5])

        def __getattr__(self, name: str) -> Any:
            return 3.0 if name == "virtual" else super().__getattr__(name)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.linear(x) * self.proxy.scale + self.proxy.shift[0] * self.virtual

    return Case(Module(), (X,))


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
    class Module(Base):
        def __init__(self) -> None:
            super().__init__()
            self.second = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.second(torch.tanh(self.linear(x)))

    module = Module()
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


@nasty
def context_variables() -> Case:
    class Module(Base):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.linear(x) * STRENGTH.get()

    return Case(Module(), (X,), roots={"STRENGTH": STRENGTH})


@nasty
def random_state() -> Case:
    class Module(Base):
        def __init__(self) -> None:
            super().__init__()
            self.noise, self.amount = random.Random(3), 0.5

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.linear(x) * random.choice([1.0, 2.0]) + self.noise.random() * self.amount + float(np.random.rand())

    module = Module()
    return Case(module, (X,), reset=lambda: module.noise.seed(3), repeats=2)


@nasty
def random_numbers_of_ones_own() -> Case:
    class Module(Base):
        def __init__(self) -> None:
            super().__init__()
            self.noise = random.Random(3)
            self.generator = np.random.default_rng(3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.linear(x) * self.noise.random() + float(self.generator.random())

    module = Module()

    def reset() -> None:
        module.noise.seed(3)
        module.generator = np.random.default_rng(3)

    return Case(module, (X,), reset=reset, repeats=2)


@nasty
def key_value_lists() -> Case:
    class Module(Base):
        def __init__(self) -> None:
            super().__init__()
            self.past: list[torch.Tensor] = []
            self.queue = collections.deque([0.5, 1.5])
            self.previous = torch.zeros(3, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.past.append(self.linear(x))
            self.queue.rotate(1)
            y = torch.stack(self.past).sum(0) * self.queue[0] + self.previous
            self.previous = y
            return y

    module = Module()

    def reset() -> None:
        module.past.clear()
        module.queue = collections.deque([0.5, 1.5])
        module.previous = torch.zeros(3, 4)

    return Case(module, (X,), reset=reset, repeats=3)


@nasty
def seeded_generators() -> Case:
    class Module(Base):
        def __init__(self) -> None:
            super().__init__()
            self.seed, self.generator = 5, torch.Generator().manual_seed(7)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            fixed = torch.randn(4, generator=torch.Generator().manual_seed(self.seed))
            return self.linear(x) * fixed + torch.rand(4, generator=self.generator)

    module = Module()
    return Case(module, (X,), reset=lambda: module.generator.manual_seed(7), repeats=2)


@nasty
def iterators() -> Case:
    class Module(Base):
        def __init__(self) -> None:
            super().__init__()
            self.factors = itertools.cycle([1.0, 2.0, 3.0])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.linear(x) * next(self.factors)

    module = Module()

    def reset() -> None:
        module.factors = itertools.cycle([1.0, 2.0, 3.0])

    return Case(module, (X,), reset=reset, repeats=3)


@nasty
def autocast() -> Case:
    class Module(Base):
        dtype = torch.bfloat16

        def __init__(self) -> None:
            super().__init__()
            self.enabled = True

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.autocast("cpu", dtype=self.dtype, enabled=self.enabled):
                y = self.linear(x)
            return y.float() * 2

    return Case(Module(), (X,), tolerance=0.02)


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
    class Module(Base):
        def __init__(self) -> None:
            super().__init__()
            self.acts = {"first": Act("leaky"), "second": Act("hard")}

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.acts["second"](self.linear(self.acts["first"](x)))

    return Case(Module(), (X,))


class Slotted:
    __slots__ = ("child", "scale", "values")

    def __init__(self, scale: float, child: Any = None) -> None:
        self.scale, self.child, self.values = scale, child, collections.deque([1.0, 2.0])

    def total(self) -> float:
        return self.scale * sum(self.values) + (self.child.total() if self.child else 0)


@nasty
def slots() -> Case:
    class Module(Base):
        def __init__(self) -> None:
            super().__init__()
            self.state = Slotted(0.5, Slotted(0.25))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.linear(x) * self.state.total()

    return Case(Module(), (X,))


class Sizes(NamedTuple):
    width: int = 4
    factors: tuple[float, ...] = (1.5, 2.0)

    def product(self) -> float:
        return float(np.prod(self.factors))


@nasty
def named_tuples() -> Case:
    class Module(Base):
        def __init__(self) -> None:
            super().__init__()
            self.sizes, self.chosen = Sizes(), frozenset({"wide"})

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.linear(x)[:, : self.sizes.width] * self.sizes.product()
            return y * 2 if "wide" in self.chosen else y

    return Case(Module(), (X,))


@nasty
def computed_names() -> Case:
    class Module(Base):
        def __init__(self) -> None:
            super().__init__()
            for number in range(3):
                setattr(self, f"scale_{number}", 1.0 + number / 2)
                setattr(self, f"table_{number}", torch.full((4,), 0.5 + number))
            self.count, self.suffixes = 3, types.SimpleNamespace(first="scale", second="table")

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y, names = self.linear(x), self.suffixes
            factors = (getattr(self, f"{names.first}_{number}") for number in range(self.count))
            for number, factor in enumerate(factors):
                y = y * factor + vars(self)[f"{names.second}_{number}"]
            return y

    return Case(Module(), (X,))


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
