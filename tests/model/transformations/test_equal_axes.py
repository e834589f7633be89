"""Transposes that swap equally long axes: the shape does not tell whether the device has computed them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from ov_backend import Settings
from tests.helpers.small import engine_for


class Attention(torch.nn.Module):
    """[B, heads, 4 * heads] -> attention of as many heads as tokens, transposed back or not."""

    def __init__(self, heads: int, one_operator: bool, back: bool) -> None:
        super().__init__()
        self.heads, self.one_operator, self.back = heads, one_operator, back
        width = 4 * heads
        self.layers = torch.nn.ModuleList([torch.nn.Linear(width, width) for _ in range(4)]).requires_grad_(False)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        q, k, v = (layer(x).unflatten(-1, (self.heads, 4)).transpose(1, 2) for layer in self.layers[:3])
        if self.one_operator:
            attended = torch.nn.functional.scaled_dot_product_attention(q, k, v)
        else:
            attended = torch.softmax(q @ k.mT / 2, -1) @ v
        if self.back:
            return self.layers[3](attended.transpose(1, 2).flatten(2)), x
        return attended, attended.sum(1)


@pytest.mark.parametrize("back", [False, True])
@pytest.mark.parametrize("one_operator", [False, True])
@pytest.mark.parametrize("heads", [3, 4, 8])
def test_as_many_heads_as_tokens(strict: Callable[..., Settings], heads: int, one_operator: bool, back: bool) -> None:
    torch.manual_seed(0)
    module = Attention(heads, one_operator, back)
    for batch in (1, 3):
        x = torch.randn(batch, heads, 4 * heads)
        network = engine_for(strict(precision="f32"), module)
        with torch.no_grad():
            torch.testing.assert_close(network(x), module(x), rtol=1e-3, atol=1e-4)
