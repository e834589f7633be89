"""Operators that return their input go; those that change it stay."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from ov_backend.trace.lowering.passes.remove_identities import remove_identities
from tests.helpers.graphs import assert_close, names, run_eagerly, traced

aten = torch.ops.aten
IDENTITIES = {
    "detach": aten.detach.default,
    "alias": aten.alias.default,
    "cast to the same dtype": lambda x: aten._to_copy.default(x, dtype=torch.float32),
}


@pytest.mark.parametrize("name", IDENTITIES)
def test_an_identity_is_removed(name: str) -> None:
    x = torch.randn(2, 3)
    gm = remove_identities(traced(lambda x: IDENTITIES[name](x) * 2, x))
    assert names(gm) == ["aten.mul.Tensor"]
    gm.recompile()
    assert_close(run_eagerly(gm, x), [x * 2])


def test_the_copy_of_a_literal_is_removed() -> None:
    x = torch.randn(2)
    gm = traced(lambda x: x + torch.tensor([1.0, 2.0]), x)
    assert "aten.lift_fresh_copy.default" in names(gm)
    gm = remove_identities(gm)
    assert names(gm) == ["aten.add.Tensor"]
    gm.recompile()
    assert_close(run_eagerly(gm, x), [x + torch.tensor([1.0, 2.0])])


@pytest.mark.parametrize(
    ("function", "left"),
    [
        (lambda x: aten.alias(aten.detach(aten.alias(x))) + 1, ["aten.add.Tensor"]),
        (lambda x: aten.detach(x * 2), ["aten.mul.Tensor"]),
        (lambda x: x.to(torch.float64) + 1, ["aten._to_copy.default", "aten.add.Tensor"]),
        (lambda x: x.clone() + 1, ["aten.clone.default", "aten.add.Tensor"]),
    ],
    ids=["a chain", "a detached result", "a cast to another dtype", "a copy"],
)
def test_what_is_left_of(function: Callable[[torch.Tensor], torch.Tensor], left: list[str]) -> None:
    assert names(remove_identities(traced(function, torch.randn(2)))) == left


def test_a_result_that_is_detached_is_another_object() -> None:
    x = torch.randn(2)
    gm = remove_identities(traced(lambda x: (aten.detach(x), x + 1), x))
    gm.recompile()
    first, second = run_eagerly(gm, x)
    assert first is not x
    assert first.data_ptr() == x.data_ptr()
    assert torch.equal(second, x + 1)


def test_a_computed_result_and_its_detached_one_are_two_objects() -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x * 2
        return y, aten.detach(y)

    gm = remove_identities(traced(function, torch.randn(2)))
    gm.recompile()
    first, second = run_eagerly(gm, torch.randn(2))
    assert first is not second
