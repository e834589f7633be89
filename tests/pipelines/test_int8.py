"""Which networks of a pipeline precision int8 applies to."""

from __future__ import annotations

from collections.abc import Callable

import torch

from ov_backend import Settings, accelerate
from tests.helpers.layers_in_8_bits import Denoiser, call_of, needs_vnni


@needs_vnni
def test_only_networks_that_denoise_calibrate(strict: Callable[..., Settings]) -> None:
    names = ("unet", "transformer", "controlnet", "vae_encode", "vae_decode", "text_encoder_2", "image_encoder", "adapter")
    networks = {name: Denoiser() for name in names}
    with accelerate(networks, strict(precision="int8")) as accelerated, torch.no_grad():
        for network in networks.values():
            network(*call_of(0))
        stats = accelerated.stats()
    assert [name for name in names if stats[name]["int8"]] == ["unet", "transformer", "controlnet"]
