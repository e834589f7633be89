"""Networks that ``torch.compile`` has compiled: while they are accelerated, their calls come to their own forward."""

from __future__ import annotations

import torch
from torch._dynamo import OptimizedModule

from ov_backend.core.patching import Patch, Unshadow, patch_forward

#: Where ``torch.nn.Module.compile`` keeps what it has made; PyTorch calls that in the place of everything else.
_OF_METHOD = "_compiled_call_impl"
#: What is said of a network that is compiled later.
BYPASSED = (
    "torch.compile or torch.export has traced what calls it, and what they make of it does not come to accelerate; "
    "call accelerate after torch.compile"
)


def uncompiled(module: torch.nn.Module) -> torch.nn.Module:
    """What ``torch.compile`` has made a module from, which is around it; any other module itself."""
    inner: torch.nn.Module = module._orig_mod if isinstance(module, OptimizedModule) else module
    return inner


def uncompile(module: torch.nn.Module) -> list[Patch | Unshadow]:
    """Let the calls of a module come to its forward, or to that of the module that it was compiled from, until all is undone."""
    inner = uncompiled(module)
    undo: list[Patch | Unshadow] = [] if inner is module else [patch_forward(module, lambda _: inner)]
    if _OF_METHOD in vars(inner):
        undo.append(Unshadow(inner, _OF_METHOD))
    return undo
