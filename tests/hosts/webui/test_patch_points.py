"""What is known of the host's networks before one is called."""

from __future__ import annotations

from collections.abc import Callable

import torch

from ov_backend import Settings
from ov_backend.engine.engine import Engine
from ov_backend.guards.code import CodeGuard
from ov_backend.hosts.webui.patch_points import HostNetwork, on_a_copy


class Overwriting(torch.nn.Module):
    """Adds to its input in place, as the layers of SD3's text encoders do."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x += self.linear(x)
        return x


def test_a_network_that_overwrites_its_input_is_answered_on_a_copy(strict: Callable[..., Settings]) -> None:
    module = Overwriting()
    host_network = HostNetwork("text_encoder", "text_encoder", module, "forward", module, traced=on_a_copy)
    network = Engine(strict()).network("text_encoder", module, host_network.bound(Overwriting.forward))
    for _ in range(2):
        x = torch.randn(3, 4)
        given = x.clone()
        torch.testing.assert_close(network(x), module(given.clone()))
        assert torch.equal(x, given)
    assert network.statistics.calls == 2


class Embedder(torch.nn.Module):
    """As OpenCLIP's: its function calls the layers, which lie deep in it, and beside them is an object of the host's."""

    def __init__(self) -> None:
        super().__init__()
        self.model = torch.nn.Module()
        self.model.layers = torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(3)))
        self.model.tokens = torch.nn.Module()
        self.model.tokens.pages = ["a page"]
        self.skipped = 1

    def run_layers(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.model.layers[: 3 - self.skipped]:
            x = layer(x)
        return x


def layers_of(embedder: Embedder) -> HostNetwork:
    return HostNetwork("text_encoder", "text_encoder", embedder, "run_layers", embedder.model.layers, weights="model.layers")


def test_what_lies_beside_the_way_to_the_weights_is_not_looked_at() -> None:
    embedder = Embedder()
    guard = CodeGuard(embedder.model.layers, (layers_of(embedder).bound(Embedder.run_layers),))
    embedder.model.tokens.pages.append("another page")
    assert guard.untouched()
    embedder.model.layers[0].forward = torch.relu  # type: ignore[method-assign]
    assert not guard.untouched()


def test_a_plain_value_on_the_way_to_the_weights_is_read_at_each_call(strict: Callable[..., Settings]) -> None:
    embedder = Embedder()
    network = Engine(strict()).network("text_encoder", embedder.model.layers, layers_of(embedder).bound(Embedder.run_layers))
    x = torch.randn(3, 4)
    for skipped in (1, 2, 0, 1):
        embedder.skipped = skipped
        layers_of(embedder).bound(Embedder.run_layers)  # as the session does before each call
        torch.testing.assert_close(network(x), embedder.run_layers(x))
    assert network.statistics.calls == 4
