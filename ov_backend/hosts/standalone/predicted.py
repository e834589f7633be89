"""What a sampler takes the finished picture for at each step: its prediction, in latents."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import torch


class Predicted:
    """Reads a sampler's prediction at each of its steps."""

    def __init__(self) -> None:
        #: Of the last step, as many as there are pictures; None before the first one, and of a sampler that is not understood.
        self.latents: torch.Tensor | None = None

    @contextlib.contextmanager
    def watching(self, sampler: Any) -> Iterator[None]:
        """In this block the predictions of a scheduler of diffusers are read; its steps stay as they are."""
        original = sampler.step

        @functools.wraps(original)  # pipelines look which arguments it takes
        def step(model_output: torch.Tensor, timestep: Any, sample: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            with_names = kwargs.pop("return_dict", True)
            result = original(model_output, timestep, sample, *args, **kwargs)
            self.latents = None
            with contextlib.suppress(Exception):  # a sampler of another kind loses its previews, not its picture
                self.latents = _prediction(sampler, result, model_output, timestep, sample)
            return result if with_names else (result.prev_sample,)

        sampler.step = step
        try:
            yield
        finally:
            del sampler.step


def _prediction(sampler: Any, result: Any, output: Any, timestep: Any, sample: Any) -> torch.Tensor | None:
    """The prediction of one step, from what the sampler tells, or by the definition of what the network has answered."""
    told = getattr(result, "pred_original_sample", None)
    if told is None:
        told = getattr(result, "denoised", None)
    if told is None and (sampler.config.get("predict_x0") or "++" in str(sampler.config.get("algorithm_type"))):
        told = (None, *getattr(sampler, "model_outputs", ()))[-1]
    return told if isinstance(told, torch.Tensor) else _by_definition(sampler, output, timestep, sample)


def _by_definition(sampler: Any, output: Any, timestep: Any, sample: Any) -> torch.Tensor | None:
    """For a sampler whose latents keep their variance: the prediction for what the network has answered at a timestep."""
    if not hasattr(sampler, "alphas_cumprod") or output.shape != sample.shape:
        return None
    kept = sampler.alphas_cumprod[int(timestep)].to(sample)
    alpha, sigma = kept**0.5, (1 - kept) ** 0.5
    kind = sampler.config.get("prediction_type", "epsilon")
    if kind == "epsilon":
        return (sample - sigma * output) / alpha
    return alpha * sample - sigma * output if kind == "v_prediction" else output
