"""What a trace refuses in the results of a forward."""

from __future__ import annotations

from collections.abc import Callable

import torch

from ov_backend import Settings
from tests.helpers.readers import X, assert_eager
from tests.helpers.small import engine_for

Strict = Callable[..., Settings]


class Pooled(torch.nn.Module):
    """As Stable Diffusion 3's text encoder: one of its results is a row that is chosen by an index."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.linear(x)[None]
        return x[
            torch.arange(x.shape[0]),
            x.sum(-1).to(dtype=torch.int).argmax(dim=-1),
        ]


class Marked(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result = self.linear(x)
        result.scale = 2.0  # type: ignore[attr-defined]
        return result


def test_a_row_that_is_chosen_by_an_index_is_answered(strict: Strict) -> None:
    module = Pooled().eval()
    network = engine_for(strict(), module)
    assert_eager(network, module)
    assert network.statistics.fallbacks.total() == 0


def test_a_result_with_an_attribute_stays_in_pytorch(strict: Strict) -> None:
    network = engine_for(strict(fallback="pytorch"), Marked())
    assert network(X).scale == 2.0
    assert network.statistics.calls == 0
