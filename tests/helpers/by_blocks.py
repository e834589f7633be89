"""A forward of other code for ldm's UNet, and a network that others step: both run by their blocks."""

from __future__ import annotations

from typing import Any

import torch


def foreign_forward(module: Any, x: torch.Tensor, timesteps: torch.Tensor, context: torch.Tensor) -> torch.Tensor:
    """The loop of ldm's UNet with something added between its blocks, as ControlNet adds residuals."""
    from ldm.modules.diffusionmodules.util import timestep_embedding

    emb = module.time_embed(timestep_embedding(timesteps, module.model_channels, repeat_only=False))
    h, skipped = x, []
    for block in module.input_blocks:
        h = block(h, emb, context)
        skipped.append(h)
    h = module.middle_block(h, emb, context) + 0.25
    for block in module.output_blocks:
        h = block(torch.cat([h, 1.1 * skipped.pop()], dim=1), emb, context)
    return module.out(h)  # type: ignore[no-any-return]


class Stepped(torch.nn.Module):
    """A network whose forward depends on a number that others change."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = torch.nn.ModuleList([torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.SiLU()) for _ in range(2)])
        self.step = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x) * (1 + self.step)
        return x
