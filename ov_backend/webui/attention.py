"""Attention as it is traced. The WebUI's variants cut it into slices to save memory, according to how much there is;
they compute the same, and OpenVINO plans its own memory. So the trace sees one scaled_dot_product_attention."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from functools import partial
from typing import Any

from modules import sd_hijack_optimizations as optimizations
from modules.hypernetworks import hypernetwork

from ov_backend.patching import Patch

_CLASSES = (
    ("ldm.modules.attention", "CrossAttention", "scaled_dot_product_attention_forward"),
    ("sgm.modules.attention", "CrossAttention", "scaled_dot_product_attention_forward"),
    ("ldm.modules.diffusionmodules.model", "AttnBlock", "sdp_attnblock_forward"),
    ("sgm.modules.diffusionmodules.model", "AttnBlock", "sdp_attnblock_forward"),
)


@contextlib.contextmanager
def as_traced() -> Iterator[None]:
    """Put the one attention in place of the WebUI's own variants; another extension's stays as it is."""
    with contextlib.ExitStack() as undo:
        for module, name, wanted in _CLASSES:
            owner = getattr(sys.modules.get(module), name, None)
            simple = getattr(optimizations, wanted, None)
            if owner is not None and simple is not None and _known(owner.forward):
                undo.callback(Patch(owner, "forward", partial(_instead, simple)).undo)
        yield


def _instead(simple: Any, _original: Any) -> Any:
    return simple


def _known(forward: Any) -> bool:
    plain = getattr(hypernetwork, "attention_CrossAttention_forward", None)
    return forward is plain or getattr(forward, "__module__", "") == optimizations.__name__
