"""The attention that a trace sees: one ``scaled_dot_product_attention``.

The WebUI's own variants of attention cut it into slices to save memory, as many as the free memory demands. They compute
the same result, and OpenVINO plans its own memory. Whether a variant still does is tried before every trace: what it calls, from
einops for example, may have been exchanged.
"""

from __future__ import annotations

import contextlib
import sys
import types
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from modules import sd_hijack_optimizations as optimizations
from modules.hypernetworks import hypernetwork

from ov_backend.core.patching import Patch

#: Module and name of each class with attention, and the WebUI's function that computes it in one piece.
_CLASSES = (
    ("ldm.modules.attention", "CrossAttention", "scaled_dot_product_attention_forward"),
    ("sgm.modules.attention", "CrossAttention", "scaled_dot_product_attention_forward"),
    ("ldm.modules.diffusionmodules.model", "AttnBlock", "sdp_attnblock_forward"),
    ("sgm.modules.diffusionmodules.model", "AttnBlock", "sdp_attnblock_forward"),
)
#: By class, arguments for a small layer and the shape of its input.
_SMALL: dict[str, tuple[tuple[Any, ...], tuple[int, ...]]] = {
    "CrossAttention": ((16, None, 2, 8), (2, 6, 16)),
    "AttnBlock": ((32,), (2, 32, 2, 3)),
}


def _codes_of(module: types.ModuleType) -> frozenset[types.CodeType]:
    """The code that is written in a module's file; another extension may have put functions of its own into the module."""
    codes = (value.__code__ for value in vars(module).values() if isinstance(value, types.FunctionType))
    return frozenset(code for code in codes if code.co_filename == module.__file__)


#: The code of the WebUI's variants when this module was loaded; a variant whose code was exchanged since is another extension's.
_CODES = _codes_of(optimizations)


def traced_functions() -> tuple[Callable[..., Any], ...]:
    """The functions that a trace runs instead of the WebUI's variants."""
    names = sorted({function for _, _, function in _CLASSES})
    return tuple(getattr(optimizations, name) for name in names if hasattr(optimizations, name))


def other_scales(network: torch.nn.Module) -> str:
    """The scales of attention that differ from the usual one of their width, with their places; "" where there is none.

    Attention in one piece always takes the usual one, which is the inverse root of a head's channels.
    """
    classes = tuple(owner for owner in map(_owner, _CLASSES) if owner is not None)
    layers = ((name, layer) for name, layer in network.named_modules() if isinstance(layer, classes) and hasattr(layer, "scale"))
    return " ".join(f"{name}.scale={layer.scale!r}" for name, layer in layers if not _has_usual_scale(layer))


def _has_usual_scale(layer: Any) -> bool:
    channels = getattr(layer.to_q, "out_features", None)
    return channels is not None and bool(layer.scale == (channels // layer.heads) ** -0.5)


@contextlib.contextmanager
def attention_in_one_piece(network: torch.nn.Module) -> Iterator[None]:
    """In this block, one attention in one piece replaces the WebUI's variants; another extension's attention stays.

    Args:
        network: that is traced; where it has :func:`other_scales`, nothing is replaced.
    """
    with contextlib.ExitStack() as undo:
        for place in _CLASSES if not other_scales(network) else ():
            owner = _owner(place)
            whole = getattr(optimizations, place[2], None)
            known = getattr(whole, "__code__", None) in _CODES and owner is not None and _is_webui_variant(owner.forward)
            if known and _computes_the_same(owner, whole):
                undo.callback(Patch(owner, "forward", partial(_replace, whole)).undo)
        yield


@torch.no_grad()
def _computes_the_same(owner: Any, whole: Callable[..., Any]) -> bool:
    """Whether a small layer of a class gives the same with its own forward and with another."""
    if torch.nn.modules.module._global_forward_hooks or torch.nn.modules.module._global_forward_pre_hooks:
        return False  # they would see the small layer
    arguments, shape = _SMALL[owner.__name__]
    generator = torch.Generator().manual_seed(0)  # the process's own draws the noise of a generation beside this trace
    with contextlib.suppress(Exception):  # of what somebody else has put there
        with torch.device("meta"):
            layer = owner(*arguments).eval()
        layer.to_empty(device="cpu")
        for weight in (*layer.parameters(), *layer.buffers()):
            weight.normal_(std=0.2, generator=generator)
        x = torch.randn(shape, generator=generator)
        expected = owner.forward(layer, x)
        return torch.allclose(whole(layer, x), expected, rtol=1e-3, atol=1e-3 * float(expected.abs().max()))
    return False


def _owner(place: tuple[str, str, str]) -> Any:
    """The class of a row of :data:`_CLASSES`, or None if its module is not loaded."""
    return getattr(sys.modules.get(place[0]), place[1], None)


def _replace(whole: Any, _original: Any) -> Any:
    return whole


def _is_webui_variant(forward: Any) -> bool:
    unoptimized = getattr(hypernetwork, "attention_CrossAttention_forward", None)
    return forward is unoptimized or getattr(forward, "__code__", None) in _CODES
