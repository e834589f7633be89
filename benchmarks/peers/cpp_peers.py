"""The peer that runs the pipeline in stable-diffusion.cpp."""

from __future__ import annotations

import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.peers.picture import GUIDANCE, PROMPT, Picture, Report
from benchmarks.peers.weights import BETAS, TRAINED_STEPS, seed_of


class StableDiffusionCpp:
    """stable-diffusion.cpp with float16 weights, which it reads from diffusers' files.

    It has no DDIM with the spacing of the others, but Euler's method at DDIM's noise levels makes the same steps up to a scale.
    Its first noise has the deviation s where the others have the square root of 1 + s²; of two steps, that is 15 % less. So its
    pictures differ.
    """

    def __init__(self, keep: Path, report: Report) -> None:
        from stable_diffusion_cpp import stable_diffusion_cpp as library

        self.prompt = PROMPT
        self.steps, self.ends = 0, list[float]()
        self._told = library.sd_progress_callback(self._progress)  # the library calls it also when it reads files
        library.sd_set_progress_callback(self._told, None)

    def _progress(self, step: int, steps: int, seconds: float, data: Any) -> None:
        if step and steps == self.steps:  # files have as many steps as tensors
            self.ends.append(time.perf_counter())

    def load(self, checkpoint: Path) -> None:
        """Read the checkpoint; the memory of an earlier one is given back first."""
        from stable_diffusion_cpp import StableDiffusion

        self.model: Any = None
        self.model = StableDiffusion(
            model_path=str(checkpoint),
            lora_model_dir=str(checkpoint.parent),
            wtype="f16",
            rng_type="cpu",  # PyTorch's numbers for the same seed
            n_threads=torch.get_num_threads(),  # by default it takes half of them
            vae_decode_only=True,
            verbose=False,
        )

    def picture(self, width: int, height: int, steps: int) -> Picture:
        """Draw a picture."""
        self.steps, self.ends = steps, []
        (image,) = self.model.generate_image(
            prompt=self.prompt,
            width=width,
            height=height,
            cfg_scale=GUIDANCE,
            sample_method="euler",
            sigmas=", ".join(map(str, _sigmas(steps))),
            sample_steps=steps,
            seed=seed_of(width, height),
        )
        ended = time.perf_counter()
        ends = self.ends[:steps]
        assert len(ends) == steps, f"{len(ends)} of {steps} steps were told"
        pixels = np.asarray(image.convert("RGB"), dtype=np.float32) / 255  # it has a fourth channel
        return Picture(pixels, [after - before for before, after in pairwise(ends)], ended - ends[-1])

    def second_checkpoint(self, checkpoint: Path) -> None:
        """Read the second checkpoint instead of the first."""
        self.load(checkpoint)

    def lora(self, path: Path) -> None:
        """Name the LoRA in the prompt; the next picture adds it to the weights."""
        self.prompt = f"{PROMPT}<lora:{path.stem}:1>"

    def recompile(self) -> bool:
        """Return False: there is nothing to recompile."""
        return False


def _sigmas(steps: int) -> list[float]:
    """The noise levels of the pipeline's DDIM, one more than steps."""
    start, end = BETAS
    kept = (1 - torch.linspace(start**0.5, end**0.5, TRAINED_STEPS, dtype=torch.float64) ** 2).cumprod(0)
    times = [index * (TRAINED_STEPS // steps) + 1 for index in reversed(range(steps))]
    return [float(((1 - kept[at]) / kept[at]).sqrt()) for at in (*times, 0)]
