"""What a snapshot says of networks and their calls."""

from __future__ import annotations

import pytest

from ov_backend.core.tensors import TensorSpec
from ov_backend.guards.signature import Signature
from ov_backend.ui.snapshot import network_label, size_and_batch


@pytest.mark.parametrize(
    "shapes,expected",
    [
        ([(2, 4, 64, 96), (2, 77, 768)], ("768x512", 2)),
        ([(1, 9, 64, 64)], ("512x512", 1)),
        ([(1, 3, 512, 768)], ("768x512", 1)),
        ([(1, 512, 768, 3)], ("768x512", 1)),
        ([(1, 77)], ("77 tokens", 1)),
        ([(2, 154, 768)], ("154 tokens", 2)),
        ([()], ("", 1)),
        ([], ("", 1)),
    ],
)
def test_a_signature_gives_picture_size_and_batch(shapes: list[tuple[int, ...]], expected: tuple[str, int]) -> None:
    specs = tuple(TensorSpec(f"x{i}", shape, "f32") for i, shape in enumerate(shapes))
    assert size_and_batch("unet", Signature(specs, "")) == expected


def test_the_mask_of_a_text_encoder_is_not_taken_for_a_picture() -> None:
    specs = (TensorSpec("x", (1, 77, 768), "f32"), TensorSpec("mask", (1, 1, 77, 77), "f32"))
    assert size_and_batch("text_encoder_2", Signature(specs, "")) == ("77 tokens", 1)


def test_networks_have_labels() -> None:
    names = ("unet", "unet #2", "vae_decode", "mine")
    assert [network_label(name) for name in names] == ["UNet", "UNet #2", "VAE decoder", "mine"]
