"""Previews: colours from latents by a map that is fitted to the checkpoint's own decoder."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import torch

from ov_backend.hosts.standalone.preview import LatentPreview


class Decoder:
    """A VAE whose colours are linear in its latents, upscaled by 8."""

    dtype = torch.float32
    config = SimpleNamespace(latent_channels=4, scaling_factor=0.5)

    def decode(self, latents: torch.Tensor) -> SimpleNamespace:
        colours = torch.stack([latents[:, 0], latents[:, 1] - latents[:, 2], latents[:, 3]], dim=1) * 0.25 + 0.1
        return SimpleNamespace(sample=torch.nn.functional.interpolate(colours, scale_factor=8.0))


def test_a_linear_decoder_is_matched_exactly() -> None:
    preview = LatentPreview(Decoder())
    latents = torch.randn(2, 4, 6, 10, generator=torch.Generator().manual_seed(1)) * 0.3
    picture = np.asarray(preview(latents), dtype=int)
    expected = Decoder().decode(latents[:1] / 0.5).sample[0, :, ::8, ::8].permute(1, 2, 0)
    assert picture.shape == (6, 10, 3)
    assert np.abs(picture - ((expected + 1) * 127.5).clamp(0, 255).numpy()).max() <= 1


def test_noise_of_any_strength_keeps_within_the_picture_s_range() -> None:
    preview = LatentPreview(Decoder())
    noise = torch.randn(1, 4, 16, 16, generator=torch.Generator().manual_seed(2))
    weak, strong = (np.asarray(preview(noise * factor), dtype=int) for factor in (2.0, 100.0))
    assert np.abs(weak - strong).max() <= 2
