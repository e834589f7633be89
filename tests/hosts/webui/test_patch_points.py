"""What is known of the host's networks before one is called."""

from __future__ import annotations

from collections.abc import Callable

import torch

from ov_backend import Settings
from ov_backend.engine.engine import Engine
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
