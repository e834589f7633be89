"""``--lowvram``: hooks in the UNet that move one block after the other to the graphics card, which are no moves on a CPU."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

import torch

_MODULE, _HOOK = "modules.lowvram", "setup_for_low_vram.<locals>.send_me_to_gpu"


class WithoutMoves:
    """Removes these hooks until :meth:`undo`, where the WebUI computes on the CPU: with them a network runs by its blocks."""

    def __init__(self, modules: Iterable[torch.nn.Module]) -> None:
        self._removed: list[tuple[torch.nn.Module, int, Any]] = []
        device = getattr(sys.modules.get("modules.devices"), "device", None)
        for module in modules if device is not None and torch.device(device).type == "cpu" else ():
            for key, hook in list(module._forward_pre_hooks.items()):
                if getattr(hook, "__module__", "") == _MODULE and getattr(hook, "__qualname__", "") == _HOOK:
                    self._removed.append((module, key, module._forward_pre_hooks.pop(key)))

    def undo(self) -> bool:
        """Put them back in front of others: the WebUI adds them when it loads a model."""
        for module, key, hook in self._removed:
            module._forward_pre_hooks[key] = hook
            module._forward_pre_hooks.move_to_end(key, last=False)
        self._removed.clear()
        return True
