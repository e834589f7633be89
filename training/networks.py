"""The ldm networks of the demo checkpoint's configuration, for training."""

from __future__ import annotations

import torch
import torch.nn.functional as F
import yaml
from ldm.modules.attention import BasicTransformerBlock, CrossAttention
from ldm.modules.diffusionmodules.model import Decoder, Encoder
from ldm.modules.diffusionmodules.openaimodel import UNetModel
from torch import Tensor, nn

from .paths import CONFIG_FILE


def config() -> dict:
    """``model.params`` of the demo checkpoint's yaml."""
    return yaml.safe_load(CONFIG_FILE.read_text())["model"]["params"]


class VAE(nn.Module):
    """ldm's AutoencoderKL, with its key names, without its Lightning base class."""

    def __init__(self, embed_dim: int, ddconfig: dict) -> None:
        super().__init__()
        self.encoder, self.decoder = Encoder(**ddconfig), Decoder(**ddconfig)
        self.quant_conv = nn.Conv2d(2 * ddconfig["z_channels"], 2 * embed_dim, 1)
        self.post_quant_conv = nn.Conv2d(embed_dim, ddconfig["z_channels"], 1)

    def encode(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The posterior's mean and log variance [n, 4, h/8, w/8] for pictures [n, 3, h, w] in -1..1."""
        mean, logvar = self.quant_conv(self.encoder(x)).chunk(2, dim=1)
        return mean, logvar.clamp(-30, 20)

    def decode(self, z: Tensor) -> Tensor:
        """Pictures for unscaled latents."""
        return self.decoder(self.post_quant_conv(z))

    def forward(self, x: Tensor, noise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Reconstruction with the given noise, and mean and log variance."""
        mean, logvar = self.encode(x)
        return self.decode(mean + noise * torch.exp(0.5 * logvar)), mean, logvar


def build_vae() -> VAE:
    """A VAE with ldm's own initialisation."""
    params = config()["first_stage_config"]["params"]
    return VAE(params["embed_dim"], params["ddconfig"])


def build_unet() -> UNetModel:
    """A UNet with ldm's own initialisation and without activation checkpointing."""
    unet = UNetModel(**config()["unet_config"]["params"])
    for module in unet.modules():
        if isinstance(module, BasicTransformerBlock):
            module.checkpoint = False
    return unet


def fused_attention(self: CrossAttention, x: Tensor, context: Tensor | None = None, mask: None = None) -> Tensor:
    """CrossAttention.forward with PyTorch's fused kernel."""
    context = x if context is None else context
    q, k, v = (y.unflatten(-1, (self.heads, -1)).transpose(1, 2) for y in (self.to_q(x), self.to_k(context), self.to_v(context)))
    return self.to_out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


def use_fused_attention() -> None:
    """Replace ldm's attention with the fused kernel in this process: the same result with less memory."""
    CrossAttention.forward = fused_attention


def schedule(device: torch.device | str = "cpu") -> Tensor:
    """The cumulative alphas of the 1000 steps ("scaled linear", as Stable Diffusion 1)."""
    params = config()
    betas = (
        torch.linspace(params["linear_start"] ** 0.5, params["linear_end"] ** 0.5, params["timesteps"], dtype=torch.float64) ** 2
    )
    return torch.cumprod(1 - betas, 0).float().to(device)
