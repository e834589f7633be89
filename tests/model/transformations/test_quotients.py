"""Quotients with a constant that the CPU device gets wrong are computed in another form."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

from ov_backend import Settings
from tests.helpers.answers import assert_right

LAYERS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "linear": lambda x: torch.nn.functional.linear(x, _weight(6, 4)),
    "convolution": lambda x: torch.nn.functional.conv2d(x, _weight(6, 3, 2, 2)),
    "transposed convolution": lambda x: torch.nn.functional.conv_transpose2d(x, _weight(3, 6, 2, 2)),
    "product": lambda x: x @ x.mT,
    "enlarged": lambda x: torch.nn.functional.interpolate(x, scale_factor=2.0),
    "normalized": lambda x: torch.nn.functional.instance_norm(x),
    "sum": lambda x: x.sum((2, 3), keepdim=True),
    "sum of all": lambda x: x.sum(),
    "layer and arithmetic": lambda x: torch.nn.functional.linear(x, _weight(6, 4)).abs() + 1,
}


def _weight(*shape: int) -> torch.Tensor:
    return torch.linspace(-1, 1, math.prod(shape)).sin().reshape(shape)


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("for_each_channel", [False, True])
def test_a_constant_is_divided_by_a_result(strict: Callable[..., Settings], layer: str, for_each_channel: bool) -> None:
    class Quotient(torch.nn.Module):
        def __init__(self, size: int) -> None:
            super().__init__()
            self.scale = torch.nn.Parameter(torch.linspace(0.3, 0.7, size), requires_grad=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            result = LAYERS[layer](x)
            return self.scale.reshape(-1, *[1] * max(result.dim() - 2, 0)) / result

    x = torch.randn(2, 3, 4, 4, generator=torch.Generator().manual_seed(0))
    result = LAYERS[layer](x)
    module = Quotient(result.shape[1] if for_each_channel and result.dim() else 1)
    assert_right(strict, module, x)


QUOTIENTS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "sum and a number": lambda x, w: x.sum(1) / 7,
    "sum and a fraction": lambda x, w: x.sum(1, keepdim=True) / 1.7,
    "mean and a weight": lambda x, w: x.mean(1) / w[:1],
    "largest and a computed weight": lambda x, w: x.amax(1) / w[1:2].exp(),
    "sum and a huge number": lambda x, w: x.sum(1) / 3e38 * 3e38,
    "arithmetic between": lambda x, w: (x.square().sum(1) + 1).sqrt() / 7.5 + x[:, 0],
    "product": lambda x, w: (x @ x.tanh()) / w,
    "integers": lambda x, w: (x * 10).int().sum(1) // 7,
    "true quotient of integers": lambda x, w: (x * 10).int().sum(1) / 7,
    "rounded": lambda x, w: (x.sum(1).round() * 41 / 41).floor(),
    "rounded division": lambda x, w: torch.div(x.sum(1).round() * 41, 41, rounding_mode="floor"),
    "compared": lambda x, w: ((x.sum(1).round().abs() * 41 / 41) >= x.sum(1).round().abs()).float(),
}


@pytest.mark.parametrize("quotient", QUOTIENTS)
def test_a_result_is_divided_by_a_constant(strict: Callable[..., Settings], quotient: str) -> None:
    class Quotient(torch.nn.Module):
        def __init__(self, size: int) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.linspace(0.3, 0.7, size), requires_grad=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return QUOTIENTS[quotient](x, self.weight)

    for size in (2, 7):
        assert_right(strict, Quotient(size), torch.randn(size, size, size, generator=torch.Generator().manual_seed(0)))
