"""When the ranges of one checkpoint serve another."""

from __future__ import annotations

import pytest

from ov_backend.quantization.fit import fits
from ov_backend.transformations.low_precision import Range

LAYERS = [f"layer{i}.weight" for i in range(40)]
OURS = {name: Range(-1.0, 3.0) for name in LAYERS}


def scaled(factor: float, layers: int = len(LAYERS)) -> dict[str, Range]:
    """What is observed if so many layers have values that are so many times as large."""
    return {name: Range(-factor, 3 * factor) if i < layers else OURS[name] for i, name in enumerate(LAYERS)}


@pytest.mark.parametrize("factor", [0.5, 1.0, 1.4])
def test_values_of_about_the_same_size_fit(factor: float) -> None:
    assert fits(OURS, scaled(factor))


@pytest.mark.parametrize("factor", [0.01, 0.3, 1.6, 100.0])
def test_values_that_are_cut_off_or_rounded_to_few_steps_do_not_fit(factor: float) -> None:
    assert not fits(OURS, scaled(factor))


@pytest.mark.parametrize("factor", [0.3, 2.0])
def test_one_layer_of_twenty_may_be_off_but_not_far_off(factor: float) -> None:
    assert fits(OURS, scaled(factor, 2))
    assert not fits(OURS, scaled(factor, 3))
    assert not fits(OURS, scaled(factor**4, 1))


def test_one_side_alone_counts() -> None:
    assert not fits({"a.weight": Range(-1.0, 3.0)}, {"a.weight": Range(-4.0, 3.0)})


def test_values_that_are_always_0_fit_and_layers_without_a_range_count_for_nothing() -> None:
    assert fits(OURS, {LAYERS[0]: Range(0.0, 0.0), "other.weight": Range(-9.0, 9.0)})
    assert not fits({"a.weight": Range(0.0, 0.0)}, {"a.weight": Range(0.0, 1.0)})
