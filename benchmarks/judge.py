"""A small classifier that names the thing in a picture of the demo checkpoint."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

#: Side in pixels of the pictures that it sees.
JUDGED_SIZE = 64
THINGS = (
    "fox", "rocket", "teapot", "bicycle", "dog face", "crown", "frog", "cat face", "guitar", "elephant", "panda", "balloon",
    "castle", "pizza", "sunflower", "octopus", "ghost", "strawberry", "penguin", "owl", "cactus", "robot", "mushroom",
    "automobile", "hamburger",
)  # fmt: skip
_STYLES = ("a {}", "a flat {}", "line art of a {}")
_PLACES = (
    "on a white background", "on a grey background", "on a red background", "on an orange background", "on a yellow background",
    "on a green background", "on a blue background", "on a purple background", "on a pink background", "on a brown background",
    "in a meadow", "on a beach", "under a night sky", "in the snow", "at sunset",
)  # fmt: skip
#: Every so many combinations of a thing with a place is held out.
_HELD_OUT = 4
_EPOCHS, _BATCH, _RATE, _SHIFT = 60, 64, 3e-3, 6


def combinations(count: int, part: str) -> list[tuple[str, int]]:
    """Prompts and the numbers of their things, each thing equally often; "seen" and "held out" share no thing in a place."""
    pairs = itertools.product(range(len(THINGS)), range(len(_PLACES)))
    wanted = [(thing, place) for thing, place in pairs if ((thing + place) % _HELD_OUT == 0) == (part == "held out")]
    generator = random.Random(part)
    result = []
    for i in range(count):
        thing = i % len(THINGS)
        place = generator.choice([place for each, place in wanted if each == thing])
        style = generator.choice(_STYLES)
        result.append((f"{style.format(THINGS[thing])} {_PLACES[place]}", thing))
    return result


class Judge(nn.Sequential):
    """Pictures [n, 3, 64, 64] from -1 to 1 to logits [n, things]."""

    def __init__(self) -> None:
        widths = (3, 32, 64, 128, 192)
        stages = [
            nn.Sequential(nn.Conv2d(a, b, 3, 2, 1, bias=False), nn.BatchNorm2d(b), nn.SiLU())
            for a, b in itertools.pairwise(widths)
        ]
        super().__init__(*stages, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Dropout(0.3), nn.Linear(4 * widths[-1], len(THINGS)))


def trained(pictures: np.ndarray, things: Sequence[int]) -> Judge:
    """A classifier trained on pictures [n, 64, 64, 3] uint8, which are shifted and mirrored at random."""
    torch.manual_seed(0)
    x, y, judge = _tensor(pictures), torch.tensor(things), Judge()
    optimizer = torch.optim.AdamW(judge.parameters(), lr=_RATE, weight_decay=0.05)
    batches = -(-len(x) // _BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, _RATE, total_steps=_EPOCHS * batches)
    for _ in range(_EPOCHS):
        for rows in torch.randperm(len(x)).chunk(batches):
            loss = F.cross_entropy(judge(_augmented(x[rows])), y[rows], label_smoothing=0.1)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    return judge.eval()


def compare(judge: Judge, own: np.ndarray, int8: np.ndarray, things: Sequence[int]) -> dict[str, Any]:
    """The accuracy in percent on the same pictures in two precisions, and how many are right in one of them only."""
    with torch.no_grad():
        right = [(judge(_tensor(pictures)).argmax(1) == torch.tensor(things)) for pictures in (own, int8)]
    shares = [round(100 * float(each.float().mean()), 2) for each in right]
    own_only, int8_only = (int((a & ~b).sum()) for a, b in (right, right[::-1]))
    counts = {"pictures_count": len(things), "only_own_count": own_only, "only_int8_count": int8_only}
    return {"own_percent": shares[0], "int8_percent": shares[1], **counts}


def _tensor(pictures: np.ndarray) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(pictures)).permute(0, 3, 1, 2).float() / 127.5 - 1


def _augmented(x: Tensor) -> Tensor:
    padded = F.pad(x, (_SHIFT,) * 4, mode="replicate")
    dy, dx = (int(torch.randint(0, 2 * _SHIFT + 1, ())) for _ in range(2))
    shifted = padded[:, :, dy : dy + x.shape[2], dx : dx + x.shape[3]]
    return shifted.flip(3) if torch.rand(()) < 0.5 else shifted
