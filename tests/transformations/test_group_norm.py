"""Group normalisation in the CPU's form gives what PyTorch gives."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from ov_backend import Settings
from tests.helpers.small import engine_for

Strict = Callable[..., Settings]
CASES = [  # input shape, groups
    ((2, 64, 12, 10), 32),
    ((1, 32, 7, 9), 32),  # a channel a group
    ((3, 12, 5, 5), 1),  # one group
    ((2, 32, 1, 1), 8),  # one pixel
    ((2, 16, 33), 4),
    ((1, 8, 3, 4, 5), 2),
    ((4, 24), 6),  # no pixels at all
]


def relative_error(got: torch.Tensor, expected: torch.Tensor) -> float:
    return float((got - expected).norm() / expected.norm())


def norm(groups: int, channels: int, affine: bool = True) -> torch.nn.Module:
    module = torch.nn.GroupNorm(groups, channels, eps=1e-6, affine=affine)
    if affine:
        torch.nn.init.normal_(module.weight, 1.0, 0.5)
        torch.nn.init.normal_(module.bias)
    return module


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("shape,groups", CASES, ids=str)
def test_group_norm(strict: Strict, shape: tuple[int, ...], groups: int, affine: bool) -> None:
    module = norm(groups, shape[1], affine)
    x = torch.randn(shape) * 3 + torch.randn(shape[1]).reshape(-1, *[1] * (len(shape) - 2))
    network = engine_for(strict(), module)
    assert relative_error(network(x), module(x)) < 1e-5
    assert network.statistics.calls == 1


@pytest.mark.parametrize("mean", [0.0, 10.0, 1000.0])
def test_group_norm_of_channels_with_a_large_mean(strict: Strict, mean: float) -> None:
    module = norm(8, 32)
    x = torch.randn(2, 32, 16, 16) + torch.randn(32, 1, 1) * mean
    assert relative_error(engine_for(strict(), module)(x), module.double()(x.double()).float()) < 1e-4


def test_group_norm_of_a_constant_is_its_bias(strict: Strict) -> None:
    module = norm(8, 32)
    x = torch.full((1, 32, 64, 64), 0.7)
    assert torch.allclose(engine_for(strict(), module)(x)[0, :, 5, 5], module.bias, atol=1e-3)


@pytest.mark.parametrize("mean,tolerance", [(0.0, 1e-2), (10.0, 2e-2)])
def test_group_norm_between_convolutions_in_bfloat16(strict: Strict, mean: float, tolerance: float) -> None:
    first, last = torch.nn.Conv2d(8, 32, 3), torch.nn.Conv2d(32, 8, 1)
    first.bias.data.normal_(0.0, 1.0).mul_(mean)
    module = torch.nn.Sequential(first, norm(8, 32), torch.nn.SiLU(), last)
    x = torch.randn(2, 8, 24, 20)
    assert relative_error(engine_for(strict(precision="bf16"), module)(x), module(x)) < tolerance
