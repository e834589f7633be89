"""What happens after every step of a generation: its status, an interruption, a small preview of the predicted picture."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from PIL import Image
from torch.nn.functional import avg_pool2d, interpolate

from ov_backend.ui.status import Status


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


#: Seconds between two previews; each takes milliseconds.
_PREVIEW_S = 0.4
#: Side of the random latents that the map is fitted to.
_SIDE = 16


class LatentPreview:
    """Turns latents into small pictures, a pixel per latent.

    A VAE's colours are nearly linear in its latents. The map is fitted once, to what the VAE itself makes of smooth random
    latents, so that it fits any checkpoint.

    Args:
        vae: a diffusers ``AutoencoderKL``; its decoder must not be patched while this is made.
    """

    def __init__(self, vae: Any) -> None:
        channels = int(vae.config.latent_channels)
        self._scale = float(vae.config.scaling_factor)
        noise = torch.randn(1, channels, _SIDE // 4, _SIDE // 4, generator=torch.Generator().manual_seed(0))
        latents = interpolate(noise, (_SIDE, _SIDE), mode="bicubic")
        with torch.inference_mode():
            picture = vae.decode((latents / self._scale).to(vae.dtype)).sample.float()
        colours = avg_pool2d(picture, picture.shape[-1] // _SIDE)
        #: [channels + 1, 3]: a row for each channel, and the offset.
        self._map = torch.linalg.lstsq(_with_ones(latents), colours[0].flatten(1).T).solution

    def __call__(self, latents: torch.Tensor) -> Image.Image:
        """The first picture of latents [B, C, H, W], W x H pixels; noise of any strength is scaled to the latents' own range."""
        first = latents[:1].float().cpu()
        first = first / first.std().clamp(min=1.0)
        height, width = first.shape[-2:]
        colours = (_with_ones(first) @ self._map).view(height, width, 3)
        return Image.fromarray(((colours + 1) * 127.5).clamp(0, 255).byte().numpy())


def _with_ones(latents: torch.Tensor) -> torch.Tensor:
    """[1, C, H, W] as [H * W, C + 1]."""
    rows = latents[0].flatten(1).T
    return torch.cat([rows, torch.ones(len(rows), 1)], dim=1)


class Steps:
    """Called by diffusers after every step of one generation.

    Args:
        status: is told of the step.
        steps: how many there will be, where the pipeline does not know.
        interrupted: whether the user has interrupted; then the pipeline skips the other steps and decodes what it has.
        show: called with the predicted latents now and then.
    """

    def __init__(
        self, status: Status, steps: int, interrupted: Callable[[], bool], show: Callable[[torch.Tensor], None]
    ) -> None:
        self._status, self._interrupted, self._show = status, interrupted, show
        self._shown_at = float("-inf")
        self.predicted = Predicted()
        #: Steps that are done, and all of them.
        self.done, self.steps = 0, steps
        #: To be decoded if this was the last step; None before the first one is done.
        self.latents: torch.Tensor | None = None

    @property
    def is_cut(self) -> bool:
        """Whether the user has interrupted before the last step."""
        return self._interrupted() and self.done < self.steps

    def __call__(self, pipe: Any, step: int, timestep: Any, tensors: dict[str, Any]) -> dict[str, Any]:
        """Step ``step`` is done, 0 is the first; returns the pipeline's tensors.

        After an interruption the latents are the predicted ones: those of the step itself still hold noise.
        """
        self.done, self.steps = step + 1, getattr(pipe, "num_timesteps", None) or self.steps
        self._status.step(self.done, self.steps)
        latents, predicted = tensors["latents"], self.predicted.latents
        if predicted is None or self.done >= self.steps:
            predicted = latents
        self.latents = predicted.to(latents.dtype)
        if self._interrupted():
            pipe._interrupt = True
            return {**tensors, "latents": self.latents}
        if time.monotonic() - self._shown_at > _PREVIEW_S:
            self._show(self.latents)
            self._shown_at = time.monotonic()
        return tensors
