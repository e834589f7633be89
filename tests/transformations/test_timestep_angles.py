"""Timestep embeddings keep their accuracy in bfloat16; other angles are not rewritten."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import openvino as ov
import openvino.opset13 as ops
import pytest
import torch

from ov_backend import Settings
from ov_backend.transformations.timestep_angles import keep_angles_exact
from tests.helpers.small import engine_for

Strict = Callable[..., Settings]


def relative_error(got: torch.Tensor, expected: torch.Tensor) -> float:
    return float((got - expected).norm() / expected.norm())


class Timesteps(torch.nn.Module):
    """timesteps [B] -> [B, 64]: the sinusoidal embedding of diffusion networks, and a layer behind it."""

    def __init__(self, scale: float = 1.0) -> None:
        super().__init__()
        self.layer, self.scale = torch.nn.Linear(64, 64), scale

    def forward(self, t: torch.Tensor) -> torch.Tensor:
        frequencies = torch.exp(-9.2 * torch.arange(32, dtype=torch.float32) / 32)
        angle = t[:, None].float() * frequencies[None] * self.scale
        return self.layer(torch.cat([torch.cos(angle), torch.sin(angle)], -1))


@pytest.mark.parametrize("scale", [1.0, 2.0])
@pytest.mark.parametrize("t", [[813.37, 0.29], [999.0, 501.0], [7.7, 0.0], [999, 501], [1, 0]], ids=str)
def test_timesteps_in_bfloat16(strict: Strict, t: list[float], scale: float) -> None:
    """813.37 is 812 in bfloat16: what is computed of it would be off by more than a radian."""
    module, x = Timesteps(scale), torch.tensor(t)
    assert relative_error(engine_for(strict(precision="bf16"), module)(x), module(x)) < 4e-2


def test_angles_that_are_no_timesteps_are_left_alone(strict: Strict) -> None:
    class Module(torch.nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return torch.sin(x * y) + torch.cos(x + 1) + torch.sin(x.sum(-1, keepdim=True))

    x, y = torch.randn(3, 4), torch.randn(3, 4)
    network = engine_for(strict(precision="bf16"), Module())
    assert relative_error(network(x, y), Module()(x, y)) < 2e-2
