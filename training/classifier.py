"""A small picture classifier; one is trained for the perceptual loss of the VAE, another to judge results."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .captions import BACKGROUNDS, SCENES, TINTS, Spec
from .render import STYLES

GROUNDS = (*BACKGROUNDS, *SCENES)
HUES = ("", *TINTS)


def block(inside: int, outside: int, stride: int) -> nn.Sequential:
    """Convolution, batch norm, SiLU."""
    return nn.Sequential(nn.Conv2d(inside, outside, 3, stride, 1, bias=False), nn.BatchNorm2d(outside), nn.SiLU(inplace=False))


class Classifier(nn.Module):
    """Pictures [n, 3, h, w] in -1..1 to logits of concept, style, background and tint.

    Args:
        concepts: number of concepts.
        width: channels of the first stage.
    """

    def __init__(self, concepts: int, width: int = 32) -> None:
        super().__init__()
        widths = [width, 2 * width, 4 * width, 6 * width, 8 * width]
        inside = [3, *widths[:-1]]
        self.stages = nn.ModuleList(nn.Sequential(block(a, b, 2), block(b, b, 1)) for a, b in zip(inside, widths, strict=True))
        sizes = {"concept": concepts, "style": len(STYLES), "background": len(GROUNDS), "tint": len(HUES)}
        self.heads = nn.ModuleDict({name: nn.Linear(widths[-1], size) for name, size in sizes.items()})

    def features(self, x: Tensor) -> list[Tensor]:
        """The output of every stage."""
        outputs = []
        for stage in self.stages:
            x = stage(x)
            outputs.append(x)
        return outputs

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        """See the class."""
        pooled = self.features(x)[-1].mean((2, 3))
        return {name: head(pooled) for name, head in self.heads.items()}


def targets(specs: list[Spec], device: torch.device | str) -> dict[str, Tensor]:
    """The right classes for pictures of one thing."""
    rows = {
        "concept": [spec.concepts[0] for spec in specs],
        "style": [STYLES.index(spec.style) for spec in specs],
        "background": [GROUNDS.index(spec.background) for spec in specs],
        "tint": [HUES.index(spec.tint) for spec in specs],
    }
    return {name: torch.tensor(row, device=device) for name, row in rows.items()}


def perceptual(net: Classifier, a: Tensor, b: Tensor) -> Tensor:
    """Mean distance of channel-normalised features over the first four stages."""
    with torch.no_grad():
        reference = net.features(b)[:4]
    total = a.new_zeros((), dtype=torch.float32)
    for x, y in zip(net.features(a)[:4], reference, strict=True):
        total = total + (F.normalize(x.float(), dim=1) - F.normalize(y.float(), dim=1)).abs().sum(1).mean()
    return total / 4


@torch.no_grad()
def accuracy(net: Classifier, pictures: Tensor, specs: list[Spec]) -> dict[str, float]:
    """Share of right predictions per head, and top-5 for the concept, over pictures of one thing."""
    logits = net(pictures)
    expected = targets(specs, pictures.device)
    shares = {name: (logits[name].argmax(1) == expected[name]).float().mean().item() for name in logits}
    top = logits["concept"].topk(5, dim=1).indices
    shares["concept_top5"] = (top == expected["concept"][:, None]).any(1).float().mean().item()
    return shares
