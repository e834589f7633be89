"""A DDIM sampler with classifier-free guidance, for grids and measurements."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from . import networks


@torch.no_grad()
def ddim(
    predict: Callable[[Tensor, Tensor, Tensor], Tensor], context: Tensor, empty: Tensor, shape: tuple[int, int],
    steps: int = 30, guidance: float = 5.0, seed: int = 0,
) -> Tensor:  # fmt: skip
    """Sample scaled latents [n, 4, h, w] from noise.

    Args:
        predict: (latents, steps [n], context) -> noise.
        context: text states [n, 77, width].
        empty: text states of the empty caption [1, 77, width].
        shape: height and width of the latents.
        steps: number of DDIM steps.
        guidance: scale of the classifier-free guidance.
        seed: of the noise.
    """
    device, count = context.device, len(context)
    alphas = networks.schedule(device)
    times = torch.linspace(999, 1, steps, device=device).round().long()
    generator = torch.Generator(device).manual_seed(seed)
    x = torch.randn(count, 4, *shape, device=device, generator=generator)
    both = torch.cat([empty.expand(count, -1, -1), context])
    for index, t in enumerate(times):
        now = alphas[t]
        then = alphas[times[index + 1]] if index + 1 < steps else alphas.new_ones(())
        blank, guided = predict(torch.cat([x, x]), t.expand(2 * count), both).float().chunk(2)
        noise = blank + guidance * (guided - blank)
        clean = (x - (1 - now).sqrt() * noise) / now.sqrt()
        x = then.sqrt() * clean + (1 - then).sqrt() * noise
    return x


def sample_pictures(
    unet: torch.nn.Module, text: torch.nn.Module, vae: networks.VAE, ids: Tensor, empty_ids: Tensor,
    size: tuple[int, int] = (256, 256), **options: float,
) -> Tensor:  # fmt: skip
    """Pictures [n, 3, h, w] in -1..1 for token ids [n, 77]."""
    kind = ids.device.type
    with torch.no_grad(), torch.autocast(kind, torch.bfloat16, enabled=kind == "cuda"):
        context, empty = text(ids).float(), text(empty_ids).float()
        latents = ddim(lambda x, t, c: unet(x, t, context=c), context, empty, (size[0] // 8, size[1] // 8), **options)
    scale = networks.config()["scale_factor"]
    with torch.no_grad():
        return torch.cat([vae.decode(part / scale) for part in latents.split(32)]).clamp(-1, 1)
