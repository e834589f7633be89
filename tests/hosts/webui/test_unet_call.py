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


def by_blocks_of(module: Any, host: Any, strict: Callable[..., Settings], options: dict[str, Any]) -> Any:
    """A network that has answered one call by its blocks, as PyTorch does."""
    from ov_backend.engine.blocks.blocks import Blockwise
    from ov_backend.engine.blocks.patched_calls import patch_calls

    engine, x, options = Engine(strict(fallback="pytorch")), torch.randn(2, 4), {**options, "sigmas": torch.ones(2)}
    network = Blockwise(engine.resources, "unet", module, module.forward, host.hooks_of_other(module))
    expected = module(x, dict(options))
    patches = patch_calls()
    try:
        result = network.by_blocks("of a patch", module.forward, (x, dict(options)), {})
    finally:
        patches.undo()
    torch.testing.assert_close(result, expected)
    return network


@pytest.mark.usefixtures("_webui")
@pytest.mark.parametrize("name", ["forge", "reforge"])
@pytest.mark.parametrize("kind,compiles", [("between_patch", 1), ("outer_patch", 1), ("inner_patch", 0)])
def test_a_block_is_a_graph_unless_its_code_calls_what_an_extension_put_there(
    kind: str, compiles: int, name: str, strict: Callable[..., Settings]
) -> None:
    called: list[int] = []

    def patch(h: torch.Tensor) -> torch.Tensor:
        called.append(1)
        return h * 2

    module = Divided().requires_grad_(False)
    host = importlib.import_module(f"ov_backend.hosts.webui.{name}").HOST
    network = by_blocks_of(module, host, strict, {"patches": {kind: [patch]}})
    assert (len(called), network.statistics.compiles) == (2, compiles)


class Attention(torch.nn.Module):
    """Calls the function that stands at its place."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, transformer_options: Any) -> torch.Tensor:
        h: torch.Tensor = self.layer(x)
        block = transformer_options.get("block", None)
        replaced = transformer_options.get("patches_replace", {}).get("attn1", {})
        return replaced[(*block, 0)](h) if block is not None and (*block, 0) in replaced else h


class Moved(torch.nn.Module):
    """Says itself which place is computed."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Attention()

    def forward(self, x: torch.Tensor, transformer_options: Any) -> torch.Tensor:
        transformer_options["block"] = ("middle", 0)
        result: torch.Tensor = self.inner(x, transformer_options)
        return result


class Placed(torch.nn.Module):
    def __init__(self, inner: torch.nn.Module) -> None:
        super().__init__()
        self.input, self.middle = Attention(), inner

    def forward(self, x: torch.Tensor, transformer_options: Any) -> torch.Tensor:
        transformer_options["block"] = ("input", 1)
        h = self.input(x, transformer_options)
        if isinstance(self.middle, Attention):
            transformer_options["block"] = ("middle", 0)
        result: torch.Tensor = self.middle(h, transformer_options)
        return result


@pytest.mark.usefixtures("_webui")
@pytest.mark.parametrize("inner", [Attention, Moved])
@pytest.mark.parametrize("place,calls,compiles", [(("middle", 0, 0), 2, 1), (("output", 2, 0), 0, 2), ("a name", 0, 0)], ids=str)
def test_a_function_that_stands_at_another_place_leaves_a_block_one_graph(
    place: Any, calls: int, compiles: int, inner: type[torch.nn.Module], strict: Callable[..., Settings]
) -> None:
    from ov_backend.hosts.webui.reforge import HOST

    called: list[int] = []

    def function(h: torch.Tensor) -> torch.Tensor:
        called.append(1)
        return h * 2

    module = Placed(inner()).requires_grad_(False)
    network = by_blocks_of(module, HOST, strict, {"patches_replace": {"attn1": {place: function}}})
    assert (len(called), network.statistics.compiles) == (calls, compiles)
