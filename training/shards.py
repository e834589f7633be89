"""Saves and loads training states as safetensors shards of bounded size."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

LIMIT = 15 * 2**20


def save(tensors: dict[str, Tensor], folder: Path, stem: str, facts: dict | None = None, limit: int = LIMIT) -> list[Path]:
    """Write ``<stem>-0.safetensors``, ``-1``, ... of at most ``limit`` bytes of tensors each, and ``<stem>.json``."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob(f"{stem}-*.safetensors"):
        old.unlink()
    parts: list[dict[str, Tensor]] = [{}]
    free = limit
    for name, tensor in tensors.items():
        size = tensor.numel() * tensor.element_size()
        if size > free and parts[-1]:
            parts.append({})
            free = limit
        parts[-1][name] = tensor.detach().cpu().contiguous()
        free -= size
    paths = [folder / f"{stem}-{number}.safetensors" for number in range(len(parts))]
    for path, part in zip(paths, parts, strict=True):
        save_file(part, path)
    (folder / f"{stem}.json").write_text(json.dumps(facts or {}, indent=1))
    return paths


def load(folder: Path, stem: str) -> tuple[dict[str, Tensor], dict] | None:
    """The tensors and facts of a saved state, or None if there is none."""
    if not (folder / f"{stem}.json").exists():
        return None
    tensors: dict[str, Tensor] = {}
    for path in sorted(folder.glob(f"{stem}-*.safetensors")):
        tensors |= load_file(path)
    return tensors, json.loads((folder / f"{stem}.json").read_text())


def half(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors, with floating-point ones as float16."""
    return {name: tensor.half() if torch.is_floating_point(tensor) else tensor for name, tensor in tensors.items()}
