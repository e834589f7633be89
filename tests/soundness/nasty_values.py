"""Small modules that read values: configurations, containers, arrays, enums, objects."""

from __future__ import annotations

import collections
import dataclasses
import enum
import types
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from tests.soundness.case import Case
from tests.soundness.nasty import Base, X, made, nasty

REGISTRY: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {"relu": F.relu, "own": lambda x: x * 0.5}


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
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(self.config.layers):
            x = REGISTRY[self.config.act](self.linear(x)) * self.config.get("scale") + self.config.extra["eps"]
        return x**self.config.power if self.config.use_bias else x

    return Case(made(forward, config=Config(power=2)), (X,))


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
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.linear(x) * self.options.scale) ** self.options.inner.power + sum(self.options.inner.values)

    return Case(made(forward, options=Frozen()), (X,))


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
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.linear(x) * self.mode.factor() + self.table[self.mode]
        return y * 2 if Bits.B in self.bits else y

    return Case(made(forward, mode=Mode.SOFT, bits=Bits.A | Bits.B, table={Mode.SOFT: 1.0, Mode.HARD: 4.0}), (X,))


@nasty
def lists_of_tensors() -> Case:
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.linear(x) * self.scales[1] + self.named["a"] * self.named["deep"][0][0]
        for layer in self.hidden:
            y = layer(y)
        return y + self.scales[0].sum()

    module = made(
        forward, scales=[torch.linspace(0, 1, 4), torch.linspace(1, 2, 4)],
        named={"a": torch.full((4,), 0.5), "deep": [(torch.tensor(2.0),)]},
        hidden=[nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), nn.Tanh())],
    )
    return Case(module, (X,))


@nasty
def numpy_arrays() -> Case:
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.linear(x)[:, torch.from_numpy(self.order)] * float(self.number) + float(self.array[2])
        return y * torch.as_tensor(self.array) if self.kinds[1] == "b" else y

    module = made(
        forward, array=np.array([0.5, 1.5, 2.5, 3.5], dtype=np.float32), number=np.float32(1.5), order=np.array([3, 1, 2, 0]),
        kinds=np.array(["a", "b"], dtype=object),
    )
    return Case(module, (X,))


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


class Slotted:
    __slots__ = ("child", "scale", "values")

    def __init__(self, scale: float, child: Any = None) -> None:
        self.scale, self.child, self.values = scale, child, collections.deque([1.0, 2.0])

    def total(self) -> float:
        return self.scale * sum(self.values) + (self.child.total() if self.child else 0)


@nasty
def slots() -> Case:
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) * self.state.total()

    return Case(made(forward, state=Slotted(0.5, Slotted(0.25))), (X,))


class Sizes(NamedTuple):
    width: int = 4
    factors: tuple[float, ...] = (1.5, 2.0)

    def product(self) -> float:
        return float(np.prod(self.factors))


@nasty
def named_tuples() -> Case:
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.linear(x)[:, : self.sizes.width] * self.sizes.product()
        return y * 2 if "wide" in self.chosen else y

    return Case(made(forward, sizes=Sizes(), chosen=frozenset({"wide"})), (X,))


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
