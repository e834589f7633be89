"""Blocks of a UNet whose calls are given ``transformer_options``, in Forge and in reForge."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import pytest
import torch

from ov_backend import Settings
from ov_backend.engine.engine import Engine


class Inner(torch.nn.Module):
    """Calls the functions of a kind."""

    def __init__(self, kind: str = "inner_patch") -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, transformer_options: Any) -> torch.Tensor:
        h: torch.Tensor = self.layer(x)
        for patch in transformer_options.get("patches", {}).get("inner_patch", ()):
            h = patch(h)
        return h


class Outer(torch.nn.Module):
    """Writes to the options, and calls functions through a function of its file; its layers call none of these."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Inner(), torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, context: torch.Tensor, transformer_options: Any) -> torch.Tensor:
        transformer_options["block"] = ("input", 1)
        return patched(self.second(self.first(x, transformer_options)), transformer_options) + context


def patched(h: torch.Tensor, options: Any) -> torch.Tensor:
    for patch in options.get("patches", {}).get("outer_patch", ()):
        h = patch(h)
    return h


class Divided(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.outer = Outer()

    def forward(self, x: torch.Tensor, transformer_options: Any) -> torch.Tensor:
        h = self.outer(x, x.mean(0, keepdim=True), transformer_options)
        for patch in transformer_options.get("patches", {}).get("between_patch", ()):
            h = patch(h)
        result: torch.Tensor = h
        return result


@pytest.mark.usefixtures("_webui")
@pytest.mark.parametrize("host", ["forge", "reforge"])
@pytest.mark.parametrize("kind,compiles", [("between_patch", 1), ("outer_patch", 1), ("inner_patch", 0)])
def test_a_block_is_a_graph_unless_its_code_calls_what_an_extension_put_there(
    kind: str, compiles: int, host: str, strict: Callable[..., Settings]
) -> None:
    from ov_backend.engine.blocks import Blockwise, patch_calls

    hooks = importlib.import_module(f"ov_backend.webui.hosts.{host}").HOST.hooks_of_other
    module, engine = Divided().requires_grad_(False), Engine(strict(fallback="pytorch"))
    network = Blockwise(engine.resources, "unet", module, module.forward, hooks(module))
    called: list[int] = []

    def patch(h: torch.Tensor) -> torch.Tensor:
        called.append(1)
        return h * 2

    x = torch.randn(2, 4)
    options = {"patches": {kind: [patch]}, "sigmas": torch.ones(2)}
    expected = module(x, dict(options))
    patches = patch_calls()
    try:
        result = network.by_blocks("of a patch", module.forward, (x, dict(options)), {})
    finally:
        patches.undo()
    torch.testing.assert_close(result, expected)
    assert (len(called), network.statistics.compiles) == (2, compiles)
