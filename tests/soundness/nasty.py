"""Small modules, each with another way to read something that is no weight: what they share."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from tests.soundness.case import Builder, Case

X = torch.linspace(-1, 1, 12).reshape(3, 4)
NASTY: dict[str, Builder] = {}


def nasty(build: Callable[[], Case]) -> Callable[[], Case]:
    """Keep a builder under its name; weights are seeded."""

    def seeded() -> Case:
        torch.manual_seed(0)
        case = build()
        case.module.eval()
        return case

    NASTY[build.__name__.replace("_", " ")] = seeded
    return build


class Base(nn.Module):
    """A linear layer, and whatever a subclass adds."""

    gain = 1.25

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def shift(self) -> float:
        return 0.125
