"""Constants and numbers that 32 bits, or float32, do not hold come out of a graph as PyTorch's, whatever else it computes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from ov_backend import Settings
from ov_backend.engine.engine import Engine

Function = Callable[[torch.Tensor], torch.Tensor]

FLOATS = torch.linspace(-1, 1, 12).reshape(3, 4)
LARGE, EXTREME = 1 << 40, 1e300


class Beside(torch.nn.Module):
    """A function beside an operator that runs in OpenVINO."""

    def __init__(self, function: Function) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.function(x), x + 1


def answer(settings: Settings, function: Function, x: torch.Tensor) -> torch.Tensor:
    """What the function gives beside OpenVINO's operator."""
    network = Engine(settings).network("net", Beside(function))
    result, beside = network(x)
    assert torch.allclose(beside, x + 1)
    assert network.stats()["calls"] == 1
    assert isinstance(result, torch.Tensor)
    return result


def integers() -> torch.Tensor:
    return torch.tensor([LARGE, 3])


def floats() -> torch.Tensor:
    return torch.tensor([EXTREME, 0.1], dtype=torch.float64)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.where(x > 0, torch.tensor(LARGE), torch.tensor(0)),
        lambda x: integers().flip(0),
        lambda x: integers(),
        lambda x: torch.cat([integers(), x[0].long()]),
        lambda x: integers()[:1].expand(4) + x.long(),
        lambda x: floats().flip(0),
        lambda x: floats(),
        lambda x: floats().repeat(2) - 0.1,
        lambda x: torch.cat([floats(), x[0].double()]),
        lambda x: torch.where(x > 0, torch.tensor(EXTREME, dtype=torch.float64), torch.tensor(0.1, dtype=torch.float64)),
    ],
)
def test_constants_of_64_bits(function: Function, strict: Callable[..., Settings]) -> None:
    assert torch.equal(answer(strict(precision="f32"), function, FLOATS), function(FLOATS))


@pytest.mark.parametrize("number", [(1 << 31) - 1, (1 << 24) + 1, -(1 << 24) - 1, 5])
@pytest.mark.parametrize(
    "fill",
    [
        lambda x, number: x.int().masked_fill(x > 1, number),
        lambda x, number: torch.nn.functional.pad(x.int(), (1, 1), value=number),
        lambda x, number: x.int().index_fill(1, torch.tensor([0]), number),
        lambda x, number: x.int().scatter(1, torch.zeros(1, 1, dtype=torch.int64), number),
    ],
)
def test_numbers_that_are_filled_in(
    fill: Callable[[torch.Tensor, int], torch.Tensor], number: int, strict: Callable[..., Settings]
) -> None:
    x = torch.tensor([[-3, 2, 5, -8]])
    assert torch.equal(answer(strict(precision="f32"), lambda x: fill(x, number), x), fill(x, number))


def test_large_numbers_are_filled_into_floats_by_openvino(strict: Callable[..., Settings]) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x.scatter(1, torch.zeros(1, 1, dtype=torch.int64), -1e9).masked_fill(x > 0.5, -3e38)

    network = Engine(strict(precision="f32")).network("net", Beside(function))
    assert torch.equal(network(FLOATS)[0], function(FLOATS))
    assert network.stats()["in_pytorch"] == {}


@pytest.mark.parametrize("special", [float("nan"), float("inf")])
@pytest.mark.parametrize("weights", [{"beta": 0}, {"alpha": 0}, {"beta": 0, "alpha": 2}, {"alpha": 0, "beta": 3}], ids=str)
@pytest.mark.parametrize("batched", [False, True])
def test_what_has_no_weight_in_a_sum_is_not_read(
    special: float, weights: dict[str, float], batched: bool, strict: Callable[..., Settings]
) -> None:
    torch.manual_seed(0)
    x, a, b = torch.randn(3, 3), torch.randn(3, 4), torch.randn(4, 3)
    if weights.get("beta") == 0:
        x = torch.full((3, 3), special)
    else:
        a = torch.full((3, 4), special)
    if batched:
        x, a, b = x[None], a[None], b[None]

    def function(y: torch.Tensor) -> torch.Tensor:
        return (torch.baddbmm if batched else torch.addmm)(x + y.sum() * 0, a, b, **weights)

    expected = function(FLOATS)
    assert bool(expected.isfinite().all()) == (not batched or weights.get("alpha") != 0), "PyTorch answers otherwise here"
    got = answer(strict(precision="f32"), function, FLOATS)
    assert torch.allclose(got, expected, rtol=1e-3, atol=1e-5, equal_nan=True)
