"""Draws one picture with a diffusers pipeline and times its parts."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from benchmarks.peers.weights import latents_for

#: Reports a figure to the parent process: a key, and named values.
Report = Callable[..., None]
PROMPT = "a red fox in the snow, morning light"
#: Guidance needs batch 2 (prompt and negative prompt). A larger scale would amplify rounding errors.
GUIDANCE = 1.5


@dataclass(frozen=True)
class Picture:
    """Pixels from 0 to 1 [height, width, 3], seconds of each step after the first, and seconds after the last step."""

    pixels: np.ndarray[Any, Any]
    steps: list[float]
    decode: float


def draw(pipe: Any, width: int, height: int, steps: int, dtype: torch.dtype) -> Picture:
    """Draw with a pipeline that has diffusers' interface."""
    ends: list[float] = []

    def step_ended(pipe: Any, step: int, timestep: Any, values: dict[str, Any]) -> dict[str, Any]:
        ends.append(time.perf_counter())
        return values

    output = pipe(
        PROMPT,
        width=width,
        height=height,
        num_inference_steps=steps,
        guidance_scale=GUIDANCE,
        latents=latents_for(width, height).to(dtype),
        output_type="np",
        callback_on_step_end=step_ended,
    )
    decode = time.perf_counter() - ends[-1]
    return Picture(output.images[0], [after - before for before, after in pairwise(ends)], decode)
