"""Small modules, each with another way to read something that is no weight: what they share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

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


def made(forward: Callable[..., Any], **attributes: Any) -> Base:
    """A module of a class of its own with this forward and these attributes."""
    names = {"__module__": forward.__module__, "__qualname__": f"{forward.__qualname__.removesuffix('forward')}Module"}
    module: Base = type("Module", (Base,), {"forward": forward, **names})()
    for name, value in attributes.items():
        setattr(module, name, value)
    return module
