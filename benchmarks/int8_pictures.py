"""The pictures by which rules of int8 are chosen, and others by which they are judged, which share no prompt and no seed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from benchmarks.bench_fidelity import PROMPTS
from ov_backend.checkpoint import load_pipeline
from ov_backend.core.package_files import TRAINED
from ov_backend.hosts.standalone.samplers import DEFAULT, make_sampler


@dataclass(frozen=True)
class Picture:
    """What one picture is drawn from.

    Attributes:
        prompt: the text.
        seed: of the noise.
        sampler: one of :data:`SAMPLERS`.
        steps: of sampling.
        guidance: the CFG scale.
        side: width and height in pixels.
    """

    prompt: str
    seed: int
    sampler: str = DEFAULT
    steps: int = 20
    guidance: float = 4.0
    side: int = 256


_THINGS = (
    "owl", "robot", "strawberry", "penguin", "cactus", "frog", "octopus", "mushroom", "sunflower", "hamburger", "ghost", "teapot",
)  # fmt: skip
_SCENES = ("a {} on a green background", "a flat {} at sunset", "line art of a {} on a white background", "a {} on a beach")
SAMPLERS = ("DPM++ 2M", "Euler", "Euler a", "DDIM", "UniPC")
_STEPS, _GUIDANCES, _SIDES = (20, 12, 20, 30), (4.0, 2.5, 6.0), (256, 256, 192, 320)

#: Rules, thresholds and exceptions are chosen by these.
CHOOSING = tuple(Picture(prompt, 300 + number) for number, prompt in enumerate(PROMPTS))
#: Figures that are reported are of these; nothing is chosen by them.
JUDGING = tuple(
    Picture(
        _SCENES[number // len(_THINGS)].format(_THINGS[number % len(_THINGS)]),
        7000 + number,
        SAMPLERS[number % len(SAMPLERS)],
        _STEPS[number % len(_STEPS)],
        _GUIDANCES[number % len(_GUIDANCES)],
        _SIDES[number // 2 % len(_SIDES)],
    )
    for number in range(len(_SCENES) * len(_THINGS))
)
#: First pictures that calibrate a recipe, each another one, before pictures of :data:`JUDGING` are drawn.
FIRST = tuple(
    Picture(prompt, 8000 + number)
    for number, prompt in enumerate(
        (
            "a crown on a purple background", "an automobile in the snow", "a dog face on a pink background", "a flat rocket",
            "a lighthouse at night", "a bicycle in a meadow", "line art of a balloon", "a fox on an orange background",
            "a red apple on a grey background", "a panda under a night sky",
        )
    )
)  # fmt: skip


def demo_pipeline() -> Any:
    """The demo checkpoint as a pipeline."""
    pipe = load_pipeline(TRAINED)
    pipe.set_progress_bar_config(disable=True)
    return pipe


def draw(pipe: Any, picture: Picture) -> np.ndarray:
    """A picture, [side, side, 3] uint8."""
    pipe.scheduler = make_sampler(picture.sampler, pipe.scheduler)
    with torch.inference_mode():
        (drawn,) = pipe(
            prompt=picture.prompt,
            width=picture.side,
            height=picture.side,
            num_inference_steps=picture.steps,
            guidance_scale=picture.guidance,
            generator=torch.Generator("cpu").manual_seed(picture.seed),
            output_type="pil",
        ).images
    return np.asarray(drawn)
