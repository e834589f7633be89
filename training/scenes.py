"""Procedural backgrounds: scenes that are drawn by tensor arithmetic, differently for every picture."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def rgb(like: Tensor, *values: int) -> Tensor:
    """A colour given as values from 0 to 255, as [3, 1, 1] in 0..1."""
    return torch.tensor(values, device=like.device, dtype=like.dtype).view(3, 1, 1) / 255


def mix(a: Tensor, b: Tensor, amount: Tensor) -> Tensor:
    """Linear blend of a and b; ``amount`` is clamped to 0..1."""
    return a + (b - a) * amount.clamp(0, 1)


def hill(xx: Tensor, draw: Callable[[], Tensor], height: float, swing: float) -> Tensor:
    """The height of a wavy horizon over x."""
    wave = torch.sin(xx * (2 + 4 * draw()) + 6.3 * draw())
    return height + (draw() - 0.5) * 0.12 + swing * wave


def edge(yy: Tensor, horizon: Tensor, soft: float = 0.008) -> Tensor:
    """0 above the horizon, 1 below, with a soft transition."""
    return torch.sigmoid((yy - horizon) / soft)


def dots(yy: Tensor, xx: Tensor, noise: Tensor, share: float) -> Tensor:
    """Scattered small spots of varying strength, from a coarse noise field [n, 1, h, w]."""
    strength = (noise > 1 - share) * (0.4 + 0.6 * (noise - (1 - share)) / share)
    return torch.nn.functional.interpolate(strength.to(yy.dtype), size=(yy.shape[-2], xx.shape[-1]), mode="bilinear")


def meadow(yy: Tensor, xx: Tensor, draw: Callable[[], Tensor], noise: Tensor) -> Tensor:
    """Blue sky over green hills."""
    sky = mix(rgb(yy, 90, 175, 245), rgb(yy, 214, 238, 252), yy * 1.5)
    far, near = hill(xx, draw, 0.62, 0.04), hill(xx, draw, 0.74, 0.03)
    land = mix(rgb(yy, 120, 200, 90), rgb(yy, 70, 165, 70), (yy - near) * 4)
    return mix(mix(sky, rgb(yy, 95, 180, 85), edge(yy, far)), land, edge(yy, near))


def beach(yy: Tensor, xx: Tensor, draw: Callable[[], Tensor], noise: Tensor) -> Tensor:
    """Sky, sea and sand."""
    sky = mix(rgb(yy, 110, 200, 250), rgb(yy, 225, 245, 252), yy * 1.8)
    sea = mix(rgb(yy, 20, 130, 190), rgb(yy, 80, 205, 215), (yy - 0.5) * 4)
    line = 0.5 + (draw() - 0.5) * 0.1
    shore = hill(xx, draw, 0.74, 0.025)
    sand = mix(rgb(yy, 246, 222, 165), rgb(yy, 232, 196, 130), (yy - shore) * 4)
    return mix(mix(sky, sea, edge(yy, line, 0.004)), sand, edge(yy, shore))


def night(yy: Tensor, xx: Tensor, draw: Callable[[], Tensor], noise: Tensor) -> Tensor:
    """A dark sky with stars."""
    sky = mix(rgb(yy, 10, 12, 45), rgb(yy, 48, 45, 110), yy)
    return mix(sky, rgb(yy, 255, 250, 225), dots(yy, xx, noise, 0.02) * 1.2)


def snow(yy: Tensor, xx: Tensor, draw: Callable[[], Tensor], noise: Tensor) -> Tensor:
    """A pale sky over white hills, with flakes."""
    sky = mix(rgb(yy, 150, 180, 215), rgb(yy, 205, 220, 238), yy * 1.5)
    ground = mix(rgb(yy, 250, 252, 255), rgb(yy, 222, 232, 246), (yy - 0.7) * 3)
    return mix(mix(sky, ground, edge(yy, hill(xx, draw, 0.68, 0.04))), rgb(yy, 255, 255, 255), dots(yy, xx, noise, 0.03))


def sunset(yy: Tensor, xx: Tensor, draw: Callable[[], Tensor], noise: Tensor) -> Tensor:
    """A low sun over dark land."""
    sky = mix(mix(rgb(yy, 75, 45, 120), rgb(yy, 240, 110, 85), yy * 1.8), rgb(yy, 255, 205, 110), (yy - 0.45) * 3)
    away = ((xx - 0.2 - 0.6 * draw()) ** 2 + (yy - 0.6) ** 2).sqrt()
    lit = mix(sky, rgb(yy, 255, 240, 190), torch.sigmoid((0.11 - away) / 0.006))
    return mix(lit, rgb(yy, 60, 35, 70), edge(yy, hill(xx, draw, 0.76, 0.02)))


PAINTERS = {"meadow": meadow, "beach": beach, "night": night, "snow": snow, "sunset": sunset}


def paint(name: str, count: int, height: int, width: int, generator: torch.Generator, dtype: torch.dtype) -> Tensor:
    """``count`` versions of a scene, [count, 3, height, width] in 0..1."""
    device = generator.device
    yy = torch.linspace(0, 1, height, device=device, dtype=dtype).view(1, 1, height, 1)
    xx = (torch.linspace(0, 1, width, device=device, dtype=dtype) * (width / height)).view(1, 1, 1, width)

    def draw() -> Tensor:
        return torch.rand(count, 1, 1, 1, generator=generator, device=device, dtype=dtype)

    noise = torch.rand(count, 1, max(height // 5, 1), max(width // 5, 1), generator=generator, device=device)
    return PAINTERS[name](yy, xx, draw, noise).expand(count, 3, height, width).clamp(0, 1)
