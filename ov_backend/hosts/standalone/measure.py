"""Seconds of one side of a comparison with PyTorch."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable
from typing import Any

from ov_backend.hosts.standalone.pipeline_call import Start
from ov_backend.ui.comparison import Measured, measured
from ov_backend.ui.controller import JobControl
from ov_backend.ui.infotext import Parameters

#: Makes pictures of parameters and the picture to start from, with further arguments of the pipeline.
Make = Callable[..., Any]


class _Ends:
    """When steps end; diffusers calls it after each."""

    def __init__(self, control: JobControl, steps: int) -> None:
        self._control, self._steps = control, steps
        self.seconds: list[float] = []

    def __call__(self, pipe: Any, step: int, timestep: Any, tensors: dict[str, Any]) -> dict[str, Any]:
        """A step is done; raises ``Interrupted`` where the user has cancelled the job."""
        self._control.part(step + 1, getattr(pipe, "num_timesteps", None) or self._steps)
        self.seconds.append(time.perf_counter())
        return tensors


def measure_step(make: Make, parameters: Parameters, control: JobControl) -> Measured:
    """Time the second of two steps; the first one includes the preparation of the networks."""
    ends = _Ends(control, parameters.steps)
    make(parameters, None, callback_on_step_end=ends, output_type="latent")
    return Measured(ends.seconds[1] - ends.seconds[0])


def measure_picture(make: Make, parameters: Parameters, picture: Start, control: JobControl) -> Measured:
    """Make and time a picture, after one of a single step that prepares the networks and warms up."""
    ends = _Ends(control, parameters.steps)
    one_step = dataclasses.replace(parameters, steps=math.ceil(1 / (parameters.strength or 1)))  # img2img skips steps
    make(one_step, picture, callback_on_step_end=ends)
    ends.seconds.clear()
    start = time.perf_counter()
    (made,) = make(parameters, picture, callback_on_step_end=ends)
    return measured(ends.seconds, time.perf_counter() - start, made)
