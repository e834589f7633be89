"""A bank of encoded pictures with captions on the training device; some are replaced at every step."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .bpe import Tokenizer
from .captions import Sampler
from .compose import Composer
from .networks import VAE

CHUNK = 64


@dataclass
class Bank:
    """Latents (scaled to unit deviation) and token ids of many pictures of one shape.

    Args:
        size: number of pictures in the bank.
        shape: height and width of the pictures, in pixels.
    """

    sampler: Sampler
    composer: Composer
    tokenizer: Tokenizer
    vae: VAE
    scale: float
    size: int
    shape: tuple[int, int]

    def __post_init__(self) -> None:
        device = self.composer.device
        height, width = self.shape
        self.latents = torch.empty(self.size, 4, height // 8, width // 8, dtype=torch.float16, device=device)
        self.ids = torch.empty(self.size, 77, dtype=torch.int32, device=device)
        self.next = 0
        for _ in range(-(-self.size // CHUNK)):
            self.renew(CHUNK)

    @torch.no_grad()
    def renew(self, count: int) -> None:
        """Replace the oldest ``count`` pictures with new ones."""
        count = min(count, self.size - self.next)
        specs = [self.sampler.draw() for _ in range(count)]
        pictures = self.composer(specs, *self.shape)
        with torch.autocast(pictures.device.type, torch.bfloat16):
            mean, logvar = self.vae.encode(pictures.to(memory_format=torch.channels_last))
        latents = mean.float() + torch.randn_like(mean, dtype=torch.float32) * torch.exp(0.5 * logvar.float())
        ids = torch.tensor([self.tokenizer.encode(self.sampler.caption(spec)) for spec in specs], dtype=torch.int32)
        span = slice(self.next, self.next + count)
        self.latents[span] = (latents * self.scale).clamp(-12, 12).half()
        self.ids[span] = ids.to(self.ids.device, non_blocking=True)
        self.next = (self.next + count) % self.size

    def draw(self, batch: int) -> tuple[Tensor, Tensor]:
        """A random batch: latents f32 [batch, 4, h, w] and ids int64 [batch, 77]."""
        rows = torch.randint(0, self.size, (batch,), device=self.ids.device)
        return self.latents[rows].float(), self.ids[rows].long()
