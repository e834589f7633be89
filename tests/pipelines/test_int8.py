"""Which networks of a pipeline precision int8 applies to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
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


@needs_vnni
def test_a_picture_that_a_callback_ends_early_does_not_calibrate(strict: Callable[..., Settings]) -> None:
    pytest.importorskip("diffusers")
    from tests.helpers.diffusers_pipelines import tiny

    def stop(pipe: Any, step: int, timestep: Any, tensors: dict[str, Any]) -> dict[str, Any]:
        pipe._interrupt = step == 8
        return tensors

    pipe, calls = tiny("sd", shallow=True), []
    asked = {"width": 32, "height": 32, "num_inference_steps": 12, "output_type": "np"}
    with accelerate(pipe, strict(precision="int8")) as accelerated:
        for more in ({"callback_on_step_end": stop}, {}):
            pipe("a cat", **asked, **more)
            (observed,) = accelerated.engine.networks["unet"].precision.observed.values()
            calls.append(observed.calls)
    assert calls == [0, 12]
