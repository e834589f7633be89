"""Which recipe belongs to which weights: names of an architecture and of a checkpoint that a LoRA does not change."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import torch

from ov_backend.store.key import name_of


def architecture_of(network: str, weights: Mapping[str, torch.Tensor]) -> str:
    """Names the architecture: 32 hexadecimal digits from the network's class, and the names and shapes of its weights."""
    return name_of("recipe", network, [(name, tuple(tensor.shape)) for name, tensor in sorted(weights.items())])


def checkpoint_of(weights: Mapping[str, torch.Tensor]) -> str:
    """Names the checkpoint: 32 hexadecimal digits from the content of its biases and normalisations.

    Most LoRAs change matrices and kernels only, and most trainings the others as well. Where a network has none of them, all
    of its weights count.
    """
    small = {name: tensor for name, tensor in sorted(weights.items()) if tensor.dim() == 1} or dict(sorted(weights.items()))
    content = hashlib.sha256()
    for name, tensor in small.items():
        content.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        content.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return content.hexdigest()[:32]
