"""Small networks that run by their blocks in 8 bits, and the fixtures of tests with them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from ov_backend import Settings
from ov_backend.engine.blocks.blocks import Blockwise
from ov_backend.engine.blocks.patched_calls import patch_calls
from ov_backend.engine.engine import Engine, NetworkHooks
from ov_backend.int8.recipe import MAX_ERROR
from tests.helpers.by_blocks import foreign_forward
from tests.helpers.layers_in_8_bits import Cancelling, error
from tests.helpers.networks import CONTEXT, seeded, unet

Strict = Callable[..., Settings]
Forward = Callable[..., torch.Tensor]


@pytest.fixture(autouse=True)
def calls_patched() -> Iterator[None]:
    patch = patch_calls()
    yield
    assert patch.undo()


@pytest.fixture(scope="module")
def graphs(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A store that the tests share, so that most of them trace nothing; recipes lie beside the graphs."""
    return str(tmp_path_factory.mktemp("graphs"))


@pytest.fixture
def settings(strict: Strict, graphs: str) -> Iterator[Settings]:
    settings = strict(precision="int8", cache_dir=graphs, fallback="pytorch")
    yield settings
    recipes = Engine(settings).resources.recipes.store
    assert recipes is not None
    recipes.clear()


def calm(seed: int = 0) -> Any:
    """ldm's UNet with one level, whose layers add little to what they read, as trained ones do: 8 bits are enough for it."""
    module = unet(seed, channel_mult=[1], attention_resolutions=[1])
    with torch.no_grad():
        for name, weight in module.named_parameters():
            if name.endswith(("out_layers.3.weight", "proj_out.weight", "to_out.0.weight", "ff.net.2.weight")):
                weight.mul_(0.2)
    return module


class Parts(torch.nn.Module):
    """A network of two blocks, with a layer in PyTorch before and after them; its calls are those of a UNet."""

    def __init__(self, first: torch.nn.Module | None = None) -> None:
        super().__init__()
        self.stem, self.head = torch.nn.Conv2d(4, 32, 3, padding=1), torch.nn.Conv2d(32, 4, 3, padding=1)
        self.first = first or torch.nn.Sequential(torch.nn.Conv2d(32, 32, 3, padding=1), torch.nn.SiLU())
        self.second = torch.nn.Sequential(torch.nn.GroupNorm(4, 32), torch.nn.SiLU(), torch.nn.Conv2d(32, 32, 3, padding=1))

    def forward(self, x: torch.Tensor, timesteps: torch.Tensor, context: torch.Tensor) -> torch.Tensor:
        h = self.first(self.stem(x) + 1e-3 * timesteps[:, None, None, None])
        return self.head(h + 0.5 * self.second(h + context.mean()))  # type: ignore[no-any-return]


class Halves(Cancelling):
    """Two products that nearly cancel each other, for which 8 bits are too few."""

    def __init__(self) -> None:
        super().__init__()
        self.c = torch.nn.Linear(64, 32, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return self.c(1000 * super().forward(x, x)).transpose(1, 2).reshape(x.shape)  # type: ignore[no-any-return]


def parts(first: torch.nn.Module | None = None) -> Any:
    return seeded(Parts(first)) if first is None else Parts(first).eval()


def call_parts(module: Any, *args: torch.Tensor) -> torch.Tensor:
    return Parts.forward(module, *args)


def blockwise(module: torch.nn.Module, settings: Settings) -> Blockwise:
    engine = Engine(settings)
    return engine.add(Blockwise(engine.resources, "unet", module, module.forward, NetworkHooks(quantizable=True)))


def call_of(step: int, size: int = 16) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(step)
    latents = torch.randn(2, 4, size, size, generator=generator)
    return latents, torch.full((2,), 800.0 - 100 * step), torch.randn(2, 7, CONTEXT, generator=generator)


def forward_of(module: torch.nn.Module) -> Callable[..., Any]:
    """Another's forward for a network, with something between the blocks."""
    return call_parts if isinstance(module, Parts) else foreign_forward


def by_blocks(network: Blockwise, forward: Callable[..., Any] | None = None) -> Forward:
    chosen = forward or forward_of(network.module)

    def foreign(*args: torch.Tensor) -> torch.Tensor:
        return chosen(network.module, *args)  # type: ignore[no-any-return]

    foreign.__qualname__ = chosen.__qualname__
    return lambda *args: network.by_blocks("it is another's", foreign, args, {})  # type: ignore[no-any-return]


def picture(network: Blockwise, steps: int = 8, size: int = 16, forward: Callable[..., Any] | None = None) -> list[torch.Tensor]:
    answer = by_blocks(network, forward)
    network.begin_run()
    with torch.no_grad():
        return [answer(*call_of(step, size)) for step in range(steps)]


def expected(module: torch.nn.Module, steps: int = 2, size: int = 16) -> list[torch.Tensor]:
    with torch.no_grad():
        return [forward_of(module)(module, *call_of(step, size)) for step in range(steps)]


def forms(network: Blockwise) -> set[str]:
    return {key.form.split(" ")[0] for key in network.resources.compiled}  # type: ignore[attr-defined]


def is_near(answers: list[torch.Tensor], module: torch.nn.Module, size: int = 16) -> bool:
    """Within the error that a recipe may have, and as much again for the device's own rounding, which may be bf16's."""
    return all(error(a, e) < 2 * MAX_ERROR for a, e in zip(answers, expected(module, len(answers), size)))
