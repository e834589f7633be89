"""Calls of all modules pass here while a host generates, so that a network can be answered by its blocks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ov_backend.engine import worker
from ov_backend.engine.calls_patch import CallsPatch
from ov_backend.engine.retried import running_network

#: ``answer(original, module, args, kwargs)`` answers one call of a module; ``original`` is PyTorch's way to call it.
Answer = Callable[[Callable[..., Any], torch.nn.Module, tuple[Any, ...], dict[str, Any]], Any]


def patch_calls(answer: Answer | None = None) -> CallsPatch:
    """Patch the calls of all modules, so that networks can be answered by their blocks; the caller undoes the patch."""
    answer = answer or call_block

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
            # Dynamo is tracing, or a network is being traced, and this module is a part of it
            if torch._dynamo.is_compiling() or worker.inside():
                return original(module, *args, **kwargs)
            return answer(original, module, args, kwargs)

        return call

    return CallsPatch(make)


def call_block(original: Callable[..., Any], module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Answer one call of a module: by OpenVINO if a network that runs by its blocks calls it and it can, else by PyTorch."""
    running = running_network.get()
    if running is None:
        return original(module, *args, **kwargs)
    return running.answer(original, module, args, kwargs)
