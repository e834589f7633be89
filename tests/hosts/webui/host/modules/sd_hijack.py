"""What the WebUI does to the ldm classes and to a loaded model."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import ldm.modules.attention
import ldm.modules.diffusionmodules.openaimodel
import torch

from modules import sd_hijack_optimizations, sd_unet

_UNET = ldm.modules.diffusionmodules.openaimodel.UNetModel
_ATTENTION = ldm.modules.attention.CrossAttention
_originals: dict[Any, Any] = {}

model_hijack = SimpleNamespace(optimization_method="InvokeAI", fixes=None, comments=[], extra_generation_params={})


def patch_classes() -> None:
    """Done by the WebUI at its start, and never undone."""
    for owner, forward in (
        (_UNET, sd_unet.create_unet_forward(_UNET.forward)),
        (_ATTENTION, sd_hijack_optimizations.split_cross_attention_forward),
    ):
        _originals[owner] = owner.forward
        owner.forward = forward


def unpatch_classes() -> None:
    """Undo it: other tests use the same classes."""
    for owner, forward in _originals.items():
        owner.forward = forward
    _originals.clear()


def apply_circular(model: torch.nn.Module, enable: bool) -> None:
    for layer in model.modules():
        if type(layer) is torch.nn.Conv2d:
            layer.padding_mode = "circular" if enable else "zeros"


class EmbeddingsWithFixes(torch.nn.Module):
    """Token embeddings with a prompt's own vectors (textual inversion); the prompt decides which and where."""

    def __init__(self, wrapped: torch.nn.Module) -> None:
        super().__init__()
        self.wrapped = wrapped

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        fixes, model_hijack.fixes = model_hijack.fixes, None
        embedded: torch.Tensor = self.wrapped(input_ids)
        for row, row_fixes in enumerate(fixes or []):
            for offset, vectors in row_fixes:
                count = min(embedded.shape[1] - offset - 1, vectors.shape[0])
                embedded[row, offset + 1 : offset + 1 + count] = vectors[:count]
        return embedded
