"""Modules that read something beside their weights, and objects for them to read."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable
from typing import Any

import torch

from ov_backend import Settings
from ov_backend.engine.engine import Network
from tests.helpers.small import engine_for
from tests.helpers.walks import no_walks

X = torch.linspace(-1, 1, 12).reshape(3, 4)


def assert_eager(network: Network, module: torch.nn.Module, x: torch.Tensor = X) -> None:
    """A network's answer is PyTorch's now."""
    torch.testing.assert_close(network(x), module(x), rtol=1e-3, atol=1e-5)


def assert_followed(strict: Callable[..., Settings], module: torch.nn.Module, change: Callable[[Any], Any]) -> None:
    """A network's answer is PyTorch's before and after a change of its module, and OpenVINO computes both."""
    module.requires_grad_(False)
    network = engine_for(strict(), module)
    assert_eager(network, module)
    with no_walks():
        assert_eager(network, module)
    before = module(X)
    change(module)
    assert_eager(network, module)
    assert not torch.equal(module(X), before), "the case changes nothing"
    assert network.statistics.fallbacks.total() == 0


class Scaled(torch.nn.Module):
    """x times whatever ``read`` finds."""

    def __init__(self, read: Callable[[torch.nn.Module], Any], **attributes: Any) -> None:
        super().__init__()
        self.read = read
        self.linear = torch.nn.Linear(4, 4)
        for name, value in attributes.items():
            setattr(self, name, value)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) * self.read(self)


class Colour(enum.Enum):
    RED = 2.0
    BLUE = 3.0


@dataclasses.dataclass
class Options:
    scale: float = 2.0
    inner: Any = None


class Object:
    """An object with a state and a method."""

    def __init__(self, scale: float = 2.0) -> None:
        self.scale = scale

    def strength(self) -> float:
        return self.scale


class Slotted:
    __slots__ = ("scale",)

    def __init__(self, scale: float = 2.0) -> None:
        self.scale = scale


class Hook:
    def __init__(self) -> None:
        self.scale = 2.0

    def __call__(self, module: Any, args: Any, result: torch.Tensor) -> torch.Tensor:
        return result * self.scale


class Child(torch.nn.Module):
    scale = 2.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


class Parent(torch.nn.Module):
    """Reads an attribute of its child that the child itself never reads."""

    def __init__(self) -> None:
        super().__init__()
        self.child = Child()
        self.child.strength = 2.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.child(x) * self.child.strength


class WithProperty(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self._scale = 2.0

    @property
    def scale(self) -> float:
        return self._scale

    def factors(self) -> float:
        return sum(getattr(self, name) for name in ("scale",))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.factors()


class InList(torch.nn.Module):
    """Keeps a module where torch does not look for one."""

    def __init__(self, bias: bool = True) -> None:
        super().__init__()
        self.hidden = [torch.nn.Linear(4, 4, bias)]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.hidden[0](x)
