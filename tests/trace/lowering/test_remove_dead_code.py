"""What nobody reads is removed, but for what is called for its effect."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from ov_backend.trace.lowering.passes.remove_dead_code import remove_dead_code
from tests.helpers.graphs import names, traced


def unread_bytes(x: torch.Tensor) -> torch.Tensor:
    torch.empty(0, dtype=torch.uint8)
    (x + 1).exp().sin()
    return x * 2


def unread_numbers(x: torch.Tensor) -> torch.Tensor:
    torch.rand(3).exp()
    torch.bernoulli(x)
    return x * 2


def unread_assertion(x: torch.Tensor) -> torch.Tensor:
    torch._assert_async((x > 0).all())
    return x * 2


def unread_write(x: torch.Tensor) -> torch.Tensor:
    x.add_(1)
    return torch.zeros(2)


@pytest.mark.parametrize(
    "function, kept",
    [
        (unread_bytes, ["aten.mul.Tensor"]),
        (unread_numbers, ["aten.rand.default", "aten.bernoulli.default", "aten.mul.Tensor"]),
        (unread_assertion, ["aten.gt.Scalar", "aten.all.default", "aten._assert_async.default", "aten.mul.Tensor"]),
        (unread_write, ["aten.add_.Tensor", "aten.zeros.default"]),
    ],
)
def test_only_what_has_no_effect_is_removed(function: Callable[[torch.Tensor], torch.Tensor], kept: list[str]) -> None:
    found = names(remove_dead_code(traced(function, torch.ones(4))))
    assert [name for name in found if name != "aten.detach.default"] == kept
