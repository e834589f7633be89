"""The attention that a trace sees: one ``scaled_dot_product_attention``.

The WebUI's own variants of attention cut it into slices to save memory, as many as the free memory demands. They compute
the same result, and OpenVINO plans its own memory.
"""

from __future__ import annotations

import contextlib
import sys
import types
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from modules import sd_hijack_optimizations as optimizations
from modules.hypernetworks import hypernetwork

from ov_backend.patching import Patch

#: Module and name of each class with attention, and the WebUI's function that computes it in one piece.
_CLASSES = (
    ("ldm.modules.attention", "CrossAttention", "scaled_dot_product_attention_forward"),
    ("sgm.modules.attention", "CrossAttention", "scaled_dot_product_attention_forward"),
    ("ldm.modules.diffusionmodules.model", "AttnBlock", "sdp_attnblock_forward"),
    ("sgm.modules.diffusionmodules.model", "AttnBlock", "sdp_attnblock_forward"),
)


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


@contextlib.contextmanager
def attention_in_one_piece() -> Iterator[None]:
    """In this block, one attention in one piece replaces the WebUI's variants; another extension's attention stays."""
    with contextlib.ExitStack() as undo:
        for module, class_name, function in _CLASSES:
            owner = getattr(sys.modules.get(module), class_name, None)
            whole = getattr(optimizations, function, None)
            if owner is not None and getattr(whole, "__code__", None) in _CODES and _is_webui_variant(owner.forward):
                undo.callback(Patch(owner, "forward", partial(_replace, whole)).undo)
        yield


def _replace(whole: Any, _original: Any) -> Any:
    return whole


def _is_webui_variant(forward: Any) -> bool:
    unoptimized = getattr(hypernetwork, "attention_CrossAttention_forward", None)
    return forward is unoptimized or getattr(forward, "__code__", None) in _CODES
