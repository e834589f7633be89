"""A network of a few layers that touches every way of keeping weights, and compiles in a moment."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ov_backend import Settings
from ov_backend.engine.engine import Engine, Network, NetworkHooks

#: Code that asks for this class by its name stays in PyTorch.
STAND_INS = (torch._subclasses.FakeTensor,)


class Small(torch.nn.Module):
    """pictures [B, 4, H, W] and token numbers [B, T] -> [B, 8, H, W]; the table and the matrix are over 1 MiB each."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.convolution = torch.nn.Conv2d(4, 8, 3, padding=1)
        self.table = torch.nn.Embedding(1200, 512)
        self.matrix = torch.nn.Linear(512, 640)
        self.last = torch.nn.Linear(640, 8)
        self.register_buffer("offset", torch.randn(8, 1, 1))
        self.scale = 2.0
        self.eval()

    def forward(self, x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        text = self.last(torch.tanh(self.matrix(self.table(ids)))).mean(1)
        return self.convolution(x) * self.scale + text[:, :, None, None] + self.offset


class Computing(torch.nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any) -> Any:
        return self.function(*args)


class Slow(Small):
    """As Small; under a trace its forward takes seconds, as that of a large network does."""

    def __init__(self, seed: int = 0, seconds: float = 1.5) -> None:
        super().__init__(seed)
        self.seconds = seconds

    def forward(self, x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        if isinstance(x, STAND_INS):
            wait(self.seconds)
        return super().forward(x, ids)


def wait(seconds: float) -> None:
    """Be busy in Python for about this long, as a trace is; a forward that looks at a clock would stay in PyTorch."""
    for _ in range(int(100_000 * seconds)):
        sum(range(1000))


def inputs(height: int = 8, width: int = 8, batch: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    """Seeded inputs of Small."""
    generator = torch.Generator().manual_seed(height * 1000 + width)
    x = torch.randn(batch, 4, height, width, generator=generator)
    return x, torch.randint(0, 1200, (batch, 7), generator=generator)


def engine_for(settings: Settings, module: torch.nn.Module, hooks: NetworkHooks | None = None) -> Network:
    """A network named "net" of an engine of its own."""
    return Engine(settings).network("net", module, hooks=hooks)


def assert_right(network: Network, module: torch.nn.Module, *args: torch.Tensor) -> None:
    """The network's answer is PyTorch's, to 1e-3 relative."""
    expected, got = module(*args), network(*args)
    assert (got - expected).norm() <= 1e-3 * expected.norm(), "the compiled network's answer is not PyTorch's"


def counts(network: Network) -> tuple[int, int]:
    """(captures, compiles) so far."""
    return network.statistics.captures, network.statistics.compiles
