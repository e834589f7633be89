"""Composes batches of training pictures from sprites, backgrounds and tints, on the training device."""

from __future__ import annotations

import io
import json
import zipfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from . import scenes
from .captions import BACKGROUNDS, SCENES, SIZES, TINTS, Spec
from .render import SIZE, STYLES

SLOTS = 3
DARK = ("black", "night")
FILL = 0.94


def load_concepts(folder: Path) -> list[dict]:
    """The records of concepts.json."""
    return json.loads((folder / "concepts.json").read_text())


def load_sprites(folder: Path, device: torch.device | str) -> Tensor:
    """All sprites, uint8 [styles * concepts, 4, 256, 256], with colour premultiplied by alpha, in style-major order."""
    with zipfile.ZipFile(folder / "sprites.zip") as archive:
        data = {name: archive.read(name) for name in archive.namelist()}
    count = len(data) // len(STYLES)

    def decode(name: str) -> np.ndarray:
        picture = np.asarray(Image.open(io.BytesIO(data[name])).convert("RGBA"), dtype=np.float32) / 255
        picture = np.concatenate([picture[..., :3] * picture[..., 3:], picture[..., 3:]], axis=-1)
        return (picture.transpose(2, 0, 1) * 255).round().astype(np.uint8)

    names = [f"{style}/{number:04}.webp" for style in STYLES for number in range(count)]
    sprites = torch.empty(len(names), 4, SIZE, SIZE, dtype=torch.uint8)
    with ThreadPoolExecutor(16) as pool:
        for index, picture in enumerate(pool.map(decode, names)):
            sprites[index] = torch.from_numpy(picture)
    return sprites.to(device)


@dataclass
class Composer:
    """Turns specs into pictures.

    Args:
        sprites: see ``load_sprites``.
        seed: of the random positions, sizes, colours and scenes.
        jitter: False uses the mean of every position and size, for grids of references.
    """

    sprites: Tensor
    seed: int
    jitter: bool = True

    def __post_init__(self) -> None:
        self.device = self.sprites.device
        self.concepts = len(self.sprites) // len(STYLES)
        self.random = np.random.default_rng(self.seed)
        self.generator = torch.Generator(self.device).manual_seed(self.seed)
        self.dtype = torch.float16 if self.device.type == "cuda" else torch.float32

    def __call__(
        self, specs: list[Spec], height: int = SIZE, width: int = SIZE, ground: tuple[int, int, int] | None = None
    ) -> Tensor:
        """Pictures [n, 3, height, width] in -1..1, drawn at twice the size and reduced.

        ``ground`` is a colour (0..255) for all of them in place of their backgrounds.
        """
        big = (2 * height, 2 * width)
        canvas = self._backgrounds(specs, *big)
        if ground is not None:
            canvas[:] = canvas.new_tensor(ground).view(1, 3, 1, 1) / 255
        boxes = np.stack([self._layout(spec, height, width) for spec in specs])
        colours, inked = self._tints(specs)
        for slot in range(SLOTS):
            rows = [n for n, spec in enumerate(specs) if slot < len(spec.concepts)]
            if rows:
                index = [STYLES.index(specs[n].style) * self.concepts + specs[n].concepts[slot] for n in rows]
                sprite = self._place(index, boxes[rows, slot], *big)
                sprite = recolour(sprite, colours[rows], inked[rows])
                canvas[rows] = canvas[rows] * (1 - sprite[:, 3:]) + sprite[:, :3]
        return F.avg_pool2d(canvas, 2).clamp(0, 1) * 2 - 1

    def _spread(self, low: float, high: float) -> float:
        return self.random.uniform(low, high) if self.jitter else (low + high) / 2

    def _layout(self, spec: Spec, height: int, width: int) -> np.ndarray:
        """For each slot: centre x, centre y, size in pixels, angle."""
        boxes = np.zeros((SLOTS, 4), dtype=np.float32)
        count = len(spec.concepts)
        rows, columns = (count, 1) if spec.stacked else (1, count)
        cell_h, cell_w = height / rows, width / columns
        for slot in range(count):
            share = SIZES[spec.size] if count == 1 else FILL
            size = min(cell_h, cell_w) * min(share * self._spread(0.9, 1.12), 0.96)
            slack_x, slack_y = ((side - size) / 2 * (0.5 if count == 1 else 0.6) for side in (cell_w, cell_h))
            row, column = (slot, 0) if spec.stacked else (0, slot)
            boxes[slot] = (
                (column + 0.5) * cell_w + self._spread(-slack_x, slack_x),
                (row + 0.5) * cell_h + self._spread(-slack_y, slack_y),
                size, self._spread(-0.1, 0.1),
            )  # fmt: skip
        return boxes

    def _place(self, index: list[int], boxes: np.ndarray, height: int, width: int) -> Tensor:
        """Sprites translated, rotated and scaled to the canvas: [n, 4, height, width]."""
        cx, cy, size, angle = torch.from_numpy(boxes.T.copy())
        cx, cy, size = 2 * cx, 2 * cy, 2 * size
        cos, sin = torch.cos(angle), torch.sin(angle)
        sx, sy = width / size, height / size
        tx, ty = (width - 2 * cx) / size, (height - 2 * cy) / size
        theta = torch.stack(
            [torch.stack([cos * sx, sin * sy, cos * tx + sin * ty], -1),
             torch.stack([-sin * sx, cos * sy, -sin * tx + cos * ty], -1)], 1,
        ).to(self.device)  # fmt: skip
        sprites = self.sprites[torch.tensor(index, device=self.device)].to(self.dtype) / 255
        grid = F.affine_grid(theta, [len(index), 4, height, width], align_corners=False).to(self.dtype)
        return F.grid_sample(sprites, grid, mode="bilinear", align_corners=False)

    def _backgrounds(self, specs: list[Spec], height: int, width: int) -> Tensor:
        canvas = torch.empty(len(specs), 3, height, width, device=self.device, dtype=self.dtype)
        flat = [n for n, spec in enumerate(specs) if spec.background in BACKGROUNDS]
        if flat:
            colours = np.array([BACKGROUNDS[specs[n].background] for n in flat], dtype=np.float32)
            spread = np.array([0 if specs[n].background == "white" else 14 * self.jitter for n in flat])[:, None]
            colours = (colours + self.random.normal(size=colours.shape) * spread).clip(0, 255) / 255
            canvas[flat] = torch.from_numpy(colours).to(self.device, self.dtype)[:, :, None, None]
        for name in SCENES:
            rows = [n for n, spec in enumerate(specs) if spec.background == name]
            if rows:
                canvas[rows] = scenes.paint(name, len(rows), height, width, self.generator, torch.float32).to(self.dtype)
        return canvas

    def _tints(self, specs: list[Spec]) -> tuple[Tensor, Tensor]:
        """For each picture a colour [n, 4] (rgb, and whether it applies), and whether it is line art [n]."""
        table = np.zeros((len(specs), 4), dtype=np.float32)
        ink = np.zeros(len(specs), dtype=bool)
        for n, spec in enumerate(specs):
            ink[n] = spec.style == "line art"
            if spec.tint:
                table[n] = (*TINTS[spec.tint], 255)
            elif ink[n] and spec.background in DARK:
                table[n] = (245, 245, 245, 255)
        return torch.from_numpy(table / 255).to(self.device, self.dtype), torch.from_numpy(ink).to(self.device)


def recolour(sprite: Tensor, colours: Tensor, inked: Tensor) -> Tensor:
    """Tint premultiplied sprites [n, 4, h, w]: shades of the colour, or for ink the colour itself."""
    rgb, alpha = sprite[:, :3], sprite[:, 3:]
    colour, on = colours[:, :3, None, None], colours[:, 3:, None, None]
    light = (rgb * rgb.new_tensor([0.3, 0.59, 0.11]).view(1, 3, 1, 1)).sum(1, keepdim=True)
    shade = colour * (0.3 * alpha + 0.9 * light) + (light - 0.62 * alpha).clamp(min=0) * 0.6
    shade = torch.minimum(shade, alpha)
    target = torch.where(inked[:, None, None, None], colour * alpha, shade)
    return torch.cat([rgb + (target - rgb) * on, alpha], 1)
