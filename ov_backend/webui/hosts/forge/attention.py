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
from backend import attention

#: The names by which networks find an attention, Forge's function that computes it in one piece, and a small call of it.
_WHOLE: tuple[tuple[str, Callable[..., Any], tuple[Any, ...], tuple[int, ...]], ...] = (
    ("attention_function", attention.attention_pytorch, (2,), (2, 6, 16)),
    ("attention_function_single_head_spatial", attention.pytorch_attention_single_head_spatial, (), (2, 8, 2, 3)),
)
_NETWORKS = "backend.nn."
#: Forge's own variants, as this module found them; a function that another extension has put there is not among them.
_CODES = frozenset(
    value.__code__
    for value in vars(attention).values()
    if isinstance(value, types.FunctionType) and value.__code__.co_filename == attention.__file__
)


def traced_functions() -> tuple[Callable[..., Any], ...]:
    """The functions that a trace runs instead of Forge's variants."""
    return tuple(whole for _, whole, _, _ in _WHOLE)


@contextlib.contextmanager
def attention_in_one_piece() -> Iterator[None]:
    """In this block, one attention in one piece replaces Forge's variants; another extension's attention stays."""
    with contextlib.ExitStack() as undo:
        for name, whole, arguments, shape in _WHOLE:
            for module in _modules_with(name):
                variant = vars(module)[name]
                known = getattr(variant, "__code__", None) in _CODES and variant is not whole
                if known and _computes_the_same(variant, whole, arguments, shape):
                    undo.callback(setattr, module, name, variant)
                    setattr(module, name, whole)
        yield


def _modules_with(name: str) -> list[types.ModuleType]:
    modules = [(key, module) for key, module in list(sys.modules.items()) if key.startswith(_NETWORKS)]
    return [module for _, module in modules if name in vars(module)]


@torch.no_grad()
def _computes_the_same(
    variant: Callable[..., Any], whole: Callable[..., Any], arguments: tuple[Any, ...], shape: tuple[int, ...]
) -> bool:
    q, k, v = torch.randn(3, *shape, generator=torch.Generator().manual_seed(0))
    return torch.allclose(whole(q, k, v, *arguments), variant(q, k, v, *arguments), rtol=1e-3, atol=1e-3)
