"""int8 with the ranges of another checkpoint, until a checkpoint has its own: only where its values fit them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from ov_backend import Settings
from ov_backend.engine.engine import Network
from ov_backend.quantization.recipe import MAX_ERROR
from tests.helpers.layers_in_8_bits import (
    CHANNELS,
    Denoiser,
    call_of,
    error,
    expected,
    forms,
    needs_vnni,
    network_of,
    picture,
    runtime_types,
)

Strict = Callable[..., Settings]
pytestmark = needs_vnni
EIGHT_BITS = {"u8", "i8"}


@pytest.fixture
def settings(strict: Strict) -> Settings:
    return strict(precision="int8")


@pytest.fixture
def calibrated(settings: Settings) -> Network:
    """A network whose second picture was made in int8."""
    network = network_of(settings, Denoiser())
    picture(network)
    picture(network, 2)
    return network


def test_another_checkpoint_borrows_the_ranges_until_it_has_its_own(calibrated: Network, settings: Settings) -> None:
    other = network_of(settings, Denoiser(seed=1))
    picture(other)
    assert forms(other) == {"int8"}
    assert runtime_types(other)["Convolution"] <= EIGHT_BITS
    assert "another checkpoint" in other.stats()["int8"]["text"]
    picture(other, 1)
    assert "% off" in other.stats()["int8"]["text"]
    recipes = other.resources.recipes.store
    assert recipes is not None
    assert len(recipes.entries()) == 2


class Scaled(torch.nn.Module):
    """Its values are so many times as large; a checkpoint is known by its biases."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = torch.nn.Conv2d(CHANNELS, 64, 3, padding=1), torch.nn.Conv2d(64, CHANNELS, 3, padding=1)
        self.inner = torch.nn.Conv2d(64, 64, 3, padding=1)
        with torch.no_grad():
            self.first.weight.mul_(factor)
            self.last.bias.add_(0.001 * factor)

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        return self.last(torch.nn.functional.silu(self.inner(torch.nn.functional.silu(self.first(x)))))


@pytest.mark.parametrize("factor", [50.0, 3.0, 0.01])
def test_ranges_of_another_checkpoint_that_do_not_fit_answer_no_call(settings: Settings, factor: float) -> None:
    own, other = (network_of(settings, Scaled(factor).eval()) for factor in (1.0, factor))
    picture(own)
    picture(own, 1)
    answers = picture(other)
    assert all(error(a, e) < 0.02 for a, e in zip(answers, expected(other.module, 8))), "the device's own rounding"
    assert "do not fit" in other.stats()["int8"]["text"]
    assert other.stats()["int8"]["state"] == "calibrating"
    picture(other, 1)
    assert other.stats()["int8"]["state"] == "on"
    assert other.stats()["int8"]["error"] < MAX_ERROR


def test_ranges_of_another_checkpoint_are_dropped_at_the_step_that_leaves_them(settings: Settings) -> None:
    own, other = network_of(settings, Scaled(1.0).eval()), network_of(settings, Scaled(1.01).eval())
    picture(own)
    picture(own, 1)
    picture(other, 2)
    assert "which the values of this one fit so far" in other.stats()["int8"]["text"]
    x, time = call_of(2)
    with torch.no_grad():
        answer, right = other(5 * x, time), other.module(5 * x, time)
    assert error(answer, right) < 0.02, "the device's own rounding"
    assert "do not fit" in other.stats()["int8"]["text"]
