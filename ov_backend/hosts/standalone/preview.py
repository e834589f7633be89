"""What happens after every step of a generation: its status, an interruption, a small preview computed from the latents."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from PIL import Image
from torch.nn.functional import avg_pool2d, interpolate

from ov_backend.hosts.standalone.predicted import Predicted
from ov_backend.ui.status import Status

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
