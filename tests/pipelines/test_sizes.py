"""Sizes that are proposed: those of a checkpoint, and one with the aspect ratio of a picture."""

from __future__ import annotations

import pytest

from ov_backend.pipelines.sizes import check_size, size_like, suggested_sizes


@pytest.mark.parametrize(
    "side,expected",
    [
        (256, [(256, 256), (256, 384), (384, 256)]),
        (512, [(512, 512), (512, 768), (768, 512)]),
        (1024, [(1024, 1024), (832, 1216), (1216, 832)]),
    ],
)
def test_sizes_follow_from_the_checkpoint_s_own(side: int, expected: list[tuple[int, int]]) -> None:
    assert suggested_sizes(side) == expected
    for size in suggested_sizes(side):
        check_size(*size)


@pytest.mark.parametrize("width,height", [(300, 200), (4000, 3000), (77, 77), (1080, 1920)])
def test_a_size_like_a_picture_s_keeps_its_aspect_ratio_and_the_number_of_pixels(width: int, height: int) -> None:
    size = check_size(*size_like(width, height, 512))
    assert size[0] / size[1] == pytest.approx(width / height, rel=0.03)
    assert size[0] * size[1] == pytest.approx(512 * 512, rel=0.03)


def test_a_very_long_picture_gives_a_size_that_suits_the_checkpoint() -> None:
    assert size_like(5000, 100, 512) == (728, 360)
