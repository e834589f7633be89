"""The networks that are timed, SD1.5's UNet and VAE decoder as the original ldm classes with random weights; and how."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

#: The relative error allowed, by precision; bf16 has 8 bits of mantissa.
TOLERANCE = {"f32": 1e-3, "auto": 6e-2, "bf16": 6e-2, "f16": 1e-2}
#: The stages before the inference of a first call, as in the statistics of a network.
STAGES = ("read", "check", "load", "capture", "convert", "bind", "compile")


@dataclass(frozen=True)
class Case:
    """A network and the arguments of one call."""

    module: torch.nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def __call__(self) -> torch.Tensor:
        return self.module(*self.args, **self.kwargs)


def unet(size: int, tiny: bool) -> Case:
    """UNetModel of SD1.5; batch 2 (prompt and negative prompt), latents of ``size``/8, 77 tokens."""
    from ldm.modules.diffusionmodules.openaimodel import UNetModel

    width = 64 if tiny else 320
    module = UNetModel(
        image_size=32,
        in_channels=4,
        out_channels=4,
        model_channels=width,
        attention_resolutions=[4, 2, 1],
        num_res_blocks=2,
        channel_mult=[1, 2, 4, 4],
        num_heads=8,
        use_spatial_transformer=True,
        transformer_depth=1,
        context_dim=768,
        use_checkpoint=False,
        legacy=False,
    )
    generator = torch.Generator().manual_seed(1)
    latent = torch.randn(2, 4, size // 8, size // 8, generator=generator)
    context = torch.randn(2, 77, 768, generator=generator)
    return Case(without_zeros(module), (latent, torch.tensor([500.0, 500.0])), {"context": context})


def vae_decoder(size: int, tiny: bool) -> Case:
    """Decoder of SD1.5's AutoencoderKL; one latent of ``size``/8."""
    from ldm.modules.diffusionmodules.model import Decoder

    module = Decoder(
        ch=32 if tiny else 128,
        out_ch=3,
        ch_mult=(1, 2, 4, 4),
        num_res_blocks=2,
        attn_resolutions=[],
        dropout=0.0,
        in_channels=3,
        resolution=256,
        z_channels=4,
        double_z=True,
    )
    latent = torch.randn(1, 4, size // 8, size // 8, generator=torch.Generator().manual_seed(1))
    return Case(without_zeros(module), (latent,), {})


NETWORKS = {"unet": unet, "vae_decode": vae_decoder}


def seconds_of(function: Callable[[], object]) -> float:
    """Wall-clock seconds of one call."""
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def without_zeros(module: torch.nn.Module) -> torch.nn.Module:
    """Set the layers that ldm initialises to zero to other values, so that the result depends on every layer."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.dim() > 1 and not parameter.any():
                parameter.normal_(0.0, 0.02, generator=generator)
    return module.eval()
