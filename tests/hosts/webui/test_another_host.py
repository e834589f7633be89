"""A WebUI that nobody knows yet, written by docs/ARCHITECTURE.md's "Another WebUI" alone: what it leaves out has a default."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ov_backend import Settings
from ov_backend.engine.engine import Engine, NetworkHooks


class Painter(torch.nn.Module):
    """A denoiser that is called by another name than forward, and writes to the dict that it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)

    def paint(self, picture: torch.Tensor, extras: dict[str, Any]) -> torch.Tensor:
        extras["seen"] = picture.shape
        painted: torch.Tensor = self.second(torch.relu(self.first(picture)) + extras["hints"].pop())
        return painted


class Grower(torch.nn.Module):
    """A VAE's decoder."""

    def forward(self, latent: torch.Tensor) -> torch.Tensor:
        return torch.tanh(latent)


def _arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return args[:1], {"hints": list(args[1]["hints"])}


def _traced(function: Callable[..., Any]) -> Callable[..., Any]:
    return partial(_with_a_fresh_dict, function)


def _with_a_fresh_dict(function: Callable[..., Any], picture: torch.Tensor, hints: list[torch.Tensor]) -> Any:
    return function(picture, {"hints": list(hints)})


@pytest.fixture
def toy(_webui: SimpleNamespace) -> Any:
    from ov_backend.hosts.webui.patch_points import PatchPoint
    from ov_backend.hosts.webui.protocol import WebUI

    class Toy(WebUI):
        name = "Toy"
        patch_points = (
            PatchPoint(__name__, "Painter", "paint", "unet", arguments=_arguments, traced=_traced),
            PatchPoint(__name__, "Grower", "forward", "vae"),
        )

        def owners(self, model: Any) -> Iterator[tuple[str, Any]]:
            yield "unet", model.painter
            yield "vae_decode", model.grower

    return Toy()


def test_its_networks_are_found_and_answered_as_one_graph_each(toy: Any, strict: Callable[..., Settings]) -> None:
    model = SimpleNamespace(painter=Painter(), grower=Grower())
    painter, grower = toy.networks_of(model)
    assert (painter.role, grower.role) == ("unet", "vae_decode")
    network = Engine(strict()).network("unet", painter.module, painter.bound(Painter.paint), toy.hooks(painter))
    for _ in range(3):
        picture, extras = torch.randn(2, 4), {"hints": [torch.randn(2, 4)], "sigma": torch.rand(1)}
        inputs, named = painter.arguments((picture, extras), {})
        torch.testing.assert_close(network(*inputs, **named), model.painter.paint(picture, extras))
    assert (network.statistics.compiles, network.statistics.calls) == (1, 3)


def test_only_the_denoiser_may_be_computed_in_8_bits(toy: Any) -> None:
    networks = toy.networks_of(SimpleNamespace(painter=Painter(), grower=Grower()))
    assert [toy.hooks(network).quantizable for network in networks] == [True, False]
    assert toy.hooks_of_other(Grower()) == NetworkHooks()


def test_before_a_model_is_loaded_there_are_no_networks(toy: Any) -> None:
    assert toy.networks_of(None) == []
