"""One picture by a diffusers pipeline, and when its parts were done."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from benchmarks.peers.weights import latents_for

#: Tells the parent a figure: its name, and what belongs to it.
Say = Callable[..., None]
PROMPT = "a red fox in the snow, morning light"
#: Prompt and negative prompt are both computed (batch 2); a larger scale would multiply roundings by itself.
GUIDANCE = 1.5


@dataclass(frozen=True)
class Picture:
    """What was drawn, 0 to 1, height x width x 3; seconds of its steps after the first, and of what comes after the last."""

    pixels: np.ndarray[Any, Any]
    steps: list[float]
    decode: float


def draw(pipe: Any, width: int, height: int, steps: int, dtype: torch.dtype) -> Picture:
    """Call a pipeline with diffusers' interface."""
    ends: list[float] = []

    def ended(pipe: Any, step: int, timestep: Any, values: dict[str, Any]) -> dict[str, Any]:
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
        callback_on_step_end=ended,
    )
    decode = time.perf_counter() - ends[-1]
    return Picture(output.images[0], [after - before for before, after in pairwise(ends)], decode)
