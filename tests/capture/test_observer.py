"""A forward that does more than compute stays in PyTorch, and a trace leaves nothing of itself behind."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
import torch

from ov_backend import Settings
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
        import random

        return x * random.random()


class Timed(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x if time.time() > 0 else -x


@pytest.mark.parametrize("kind", [Counting, Collecting, Remembering, Drawing, Timed])
def test_a_forward_with_side_effects_stays_in_pytorch(strict: Strict, kind: type[torch.nn.Module]) -> None:
    import random

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
