"""In the default precision no answer is further from f32 than twice PyTorch's autocast; ``make soundness`` draws thousands."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import ov_backend
from ov_backend import Settings
from ov_backend.core import devices
from tests.soundness import options, positions

pytestmark = pytest.mark.skipif(devices.resolved_precision(Settings(device="CPU")) != "bf16", reason="this CPU computes in f32")


@pytest.mark.parametrize("form", positions.FORMS)
def test_networks_of_positions_and_offsets_answer_as_autocast_does(form: str) -> None:
    first = options.graph_seed() * 1000
    wrong = [message for seed in range(first, first + 8) if (message := positions.judge(seed, form=form))]
    assert not wrong, "\n".join(wrong)


def test_a_device_that_rounds_everything_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "takes_autocast_types", lambda settings: False)
    wrong = [seed for seed in range(16) if positions.judge(seed)]
    assert len(wrong) > 2


@pytest.mark.parametrize(
    "after",
    [
        lambda y: (1 + y * 0.01).prod(0),
        lambda y: (1 + y / 100).cumprod(0),
        lambda y: (y.view(500, 4, 4) * 0.01 - 1).prod(0),
        lambda y: (1 + y * 0.01).log().cumsum(0).exp(),
    ],
)
def test_errors_that_add_up_over_rows_are_as_small_as_autocasts(after: Callable[[torch.Tensor], torch.Tensor]) -> None:
    layer, x = torch.nn.Linear(16, 16).eval(), torch.randn(500, 16)
    network = torch.nn.Sequential(layer, Then(after))
    with torch.no_grad():
        exact = network(x)
        with torch.autocast("cpu", torch.bfloat16):
            by_autocast = network(x)
        accelerated = ov_backend.accelerate({"network": network})
        ours = network(x)
    assert accelerated.stats()["network"]["calls"] == 1
    assert (ours - exact).norm() <= 2 * (by_autocast - exact).norm() + 1e-3 * exact.norm()


class Then(torch.nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x)
