"""The attention that a trace sees: one ``scaled_dot_product_attention``.

On a CPU Forge cuts attention into pieces, as many as the free memory demands. The result is the same, and OpenVINO plans its
own memory. Whether it is still the same is tried before every trace.
"""

from __future__ import annotations

import contextlib
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch

#: Where Forge's variants stand, and how the names of the modules begin that have taken one of them from there.
_VARIANTS, _NETWORKS = "backend.attention", "backend.nn."
#: By the name under which networks call an attention, the variant in one piece, and the arguments and shapes of a small call.
_WHOLE: dict[str, tuple[str, tuple[Any, ...], tuple[int, ...]]] = {
    "attention_function": ("attention_pytorch", (2,), (2, 6, 16)),
    "attention_function_single_head_spatial": ("pytorch_attention_single_head_spatial", (), (2, 8, 2, 3)),
}


def traced_functions() -> tuple[Callable[..., Any], ...]:
    """The functions that a trace runs instead of Forge's variants."""
    return tuple(whole for name in _WHOLE if (whole := _whole(name)) is not None)


@contextlib.contextmanager
def in_one_piece() -> Iterator[None]:
    """In this block, attention in one piece replaces Forge's variants; another extension's attention stays."""
    with contextlib.ExitStack() as undo:
        for name in _WHOLE:
            whole = _whole(name)
            for members in _users(name):
                variant = members[name]
                if whole is not None and variant is not whole and _is_forges(variant) and _is_the_same(name, variant, whole):
                    undo.callback(members.__setitem__, name, variant)
                    members[name] = whole
        yield


def _whole(name: str) -> Any:
    """Forge's variant in one piece; None where Forge has none, or another extension has put a function of its own there."""
    whole = getattr(sys.modules.get(_VARIANTS), _WHOLE[name][0], None)
    return whole if _is_forges(whole) else None


def _users(name: str) -> list[dict[str, Any]]:
    modules = [module for key, module in sorted(sys.modules.items()) if key.startswith(_NETWORKS)]
    return [vars(module) for module in modules if name in vars(module)]


def _is_forges(function: Any) -> bool:
    file = getattr(sys.modules.get(_VARIANTS), "__file__", None)
    return isinstance(function, types.FunctionType) and function.__code__.co_filename == file


@torch.no_grad()
def _is_the_same(name: str, variant: Callable[..., Any], whole: Callable[..., Any]) -> bool:
    """Whether a variant computes what another one does."""
    _, arguments, shape = _WHOLE[name]
    q, k, v = torch.randn(3, *shape, generator=torch.Generator().manual_seed(0))
    return torch.allclose(whole(q, k, v, *arguments), variant(q, k, v, *arguments), rtol=1e-3, atol=1e-3)
