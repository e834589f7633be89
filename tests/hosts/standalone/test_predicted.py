"""What a sampler predicts at each step: with a network that knows the finished latents, these, for every sampler."""

from __future__ import annotations

import inspect

import numpy as np
import pytest
import torch

from ov_backend.hosts.standalone.preview import Predicted
from ov_backend.hosts.standalone.samplers import NAMES, make_sampler

diffusers = pytest.importorskip("diffusers")

BETAS = {"beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear"}


@pytest.mark.parametrize("kind", ["epsilon", "v_prediction"])
@pytest.mark.parametrize("name", [*NAMES, ""])
def test_the_finished_latents_are_predicted_at_every_step(name: str, kind: str) -> None:
    kinds = {"prediction_type": kind, "steps_offset": 1}
    own = diffusers.DDIMScheduler(**BETAS, **kinds, clip_sample=False) if name else diffusers.PNDMScheduler(**BETAS, **kinds)
    sampler = make_sampler(name, own)
    sampler.set_timesteps(12)
    generator = torch.Generator().manual_seed(1)
    finished = torch.randn(2, 4, 8, 8, generator=generator)
    latents = torch.randn(finished.shape, generator=generator) * sampler.init_noise_sigma
    random = {"generator": generator} if "generator" in inspect.signature(sampler.step).parameters else {}
    watched, errors = Predicted(), []
    with watched.watching(sampler):
        assert ("generator" in inspect.signature(sampler.step).parameters) == bool(random)
        for timestep in sampler.timesteps:
            seen = sampler.scale_model_input(latents, timestep)
            kept = np.interp(float(timestep), range(1000), sampler.alphas_cumprod.numpy())
            alpha, sigma = kept**0.5, (1 - kept) ** 0.5
            noise = (seen - alpha * finished) / sigma
            output = noise if kind == "epsilon" else alpha * noise - sigma * finished
            (latents,) = sampler.step(output, timestep, latents, **random, return_dict=False)
            assert watched.latents is not None
            errors.append(float((watched.latents - finished).abs().mean()))
    assert "step" not in vars(sampler), "the sampler is as it was"
    assert max(errors[len(errors) // 3 :]) < 0.1, errors
