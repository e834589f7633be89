"""The attention that a trace sees: one ``scaled_dot_product_attention``.

reForge computes attention of UNets and VAEs in slices, as many as the free memory demands. They compute the same result, and
OpenVINO plans its own memory.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from ov_backend.core.patching import Patch

_UNET, _VAE = "ldm_patched.ldm.modules.attention", "ldm_patched.ldm.modules.diffusionmodules.model"
#: reForge's own variants; any other is another extension's, or for other devices, and stays.
_VARIANTS = ("attention_basic", "attention_sub_quad", "attention_split")


def of_vae(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """What ``slice_attention`` computes, in one piece.

    Args:
        q: [B, H * W, C]
        k: [B, C, H * W]
        v: [B, C, H * W]

    Returns:
        [B, C, H * W]
    """
    return torch.nn.functional.scaled_dot_product_attention(q, k.transpose(1, 2), v.transpose(1, 2)).transpose(1, 2)


def _places() -> Iterator[tuple[Any, str, Callable[..., Any]]]:
    """Modules, names in them, and the function that a trace runs instead of the one that stands there."""
    unet, vae = sys.modules.get(_UNET), sys.modules.get(_VAE)
    whole = getattr(unet, "attention_pytorch", None)
    variants = {getattr(getattr(unet, name, None), "__code__", None) for name in _VARIANTS}
    for name in ("optimized_attention", "optimized_attention_masked"):
        if whole is not None and getattr(getattr(unet, name, None), "__code__", None) in variants:
            yield unet, name, whole
    sliced = getattr(vae, "slice_attention", None)
    if sliced is not None and sliced.__code__.co_filename == vae.__file__:  # type: ignore[union-attr]
        yield vae, "slice_attention", of_vae


def traced_functions() -> tuple[Callable[..., Any], ...]:
    """The functions that a trace runs instead of reForge's variants."""
    return tuple({id(whole): whole for _, _, whole in _places()}.values())


@contextlib.contextmanager
def in_one_piece() -> Iterator[None]:
    """In this block, one attention in one piece replaces reForge's variants; another extension's attention stays."""
    with contextlib.ExitStack() as undo:
        for module, name, whole in list(_places()):
            undo.callback(Patch(module, name, partial(_replace, whole)).undo)
        yield


def _replace(whole: Any, _original: Any) -> Any:
    return whole
