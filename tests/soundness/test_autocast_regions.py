"""What a program computes where it has switched autocast off keeps float32 in the default precision, whatever the way there."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import ov_backend
from ov_backend import Settings
from ov_backend.core import devices
from ov_backend.core.autocast_regions import PREFIX, is_marked
from ov_backend.core.fx_utils import graph_text
from ov_backend.trace.capture import trace
from tests.helpers.torch_compile import Compile, calls, fallbacks
from tests.soundness import autocast

pytestmark = pytest.mark.skipif(devices.resolved_precision(Settings(device="CPU")) != "bf16", reason="this CPU computes in f32")
LIBRARY = torch.library.Library("regions", "DEF")
LIBRARY.define("add_(Tensor(a!) x, float v) -> ()")
LIBRARY.impl("add_", lambda x, v: _add(x, v), "CompositeExplicitAutograd")
Compute = Callable[["Network", torch.Tensor, torch.Tensor], torch.Tensor]


def _add(x: torch.Tensor, v: float) -> None:
    x.add_(v)


def off() -> torch.autocast:
    return torch.autocast("cpu", enabled=False)


def both(angles: torch.Tensor) -> torch.Tensor:
    return torch.cat([angles.cos(), angles.sin()], -1)


def rotary(net: Network, x: torch.Tensor, p: torch.Tensor) -> torch.Tensor:
    with off():
        return both(p[:, :1] @ net.frequencies[None])


def sum_with_product(net: Network, x: torch.Tensor, p: torch.Tensor) -> torch.Tensor:
    with torch.autocast(device_type=x.device.type, enabled=net.training):
        return both(torch.addmm(net.frequencies, p, net.table))


def convolution(net: Network, x: torch.Tensor, p: torch.Tensor) -> torch.Tensor:
    with off():
        return F.conv1d(p.T[None], net.kernel, padding=1)[0].T.sin()


def recurrent(net: Network, x: torch.Tensor, p: torch.Tensor) -> torch.Tensor:
    with off():
        states, _ = net.lstm(x)
    return (states * 300).sin()


def complex_angles(net: Network, x: torch.Tensor, p: torch.Tensor) -> torch.Tensor:
    with off():
        angles = torch.einsum("nd,df->nf", p, net.table)
        return torch.view_as_real(torch.polar(torch.ones_like(angles), angles)).flatten(-2)


def on_within_off(net: Network, x: torch.Tensor, p: torch.Tensor) -> torch.Tensor:
    with off():
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = net.layer(x)
        return both(p @ net.table) * y.float()


def written(net: Network, x: torch.Tensor, p: torch.Tensor) -> torch.Tensor:
    with off():
        x[:, :8] = (p @ net.table).sin()
    return x


def in_parts(net: Network, x: torch.Tensor, p: torch.Tensor) -> torch.Tensor:
    with off():
        first = p @ net.table
        torch.ops.regions.add_(first, 1.0)
        return torch.cat([first.sin(), ((p * 1.5) @ net.table).sin()], -1)


def _with_a_break(p: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    angles = p @ table
    torch._dynamo.graph_break()
    return both(angles)


def called_there(net: Network, x: torch.Tensor, p: torch.Tensor) -> torch.Tensor:
    with off():
        return _with_a_break(p, net.table)


def block_called_there(net: Network, x: torch.Tensor, p: torch.Tensor) -> torch.Tensor:
    if float(p.sum()) > 1e9:
        return x
    with off():
        return net.block(p)


def distances(net: Network, x: torch.Tensor, p: torch.Tensor) -> torch.Tensor:
    return torch.cdist(p, p[:16] * 1.1).sin()


def inner_product(net: Network, x: torch.Tensor, p: torch.Tensor) -> torch.Tensor:
    return torch.dot(p[:, 0], p[:, 1]).sin() + x


COMPILED = [written, in_parts, called_there]
ACCELERATED = [block_called_there]
ANYWAY = [rotary, sum_with_product, convolution, recurrent, complex_angles, on_within_off, distances, inner_product]


class Angles(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 16)

    def forward(self, p: torch.Tensor) -> torch.Tensor:
        return self.linear(p).sin()


class Network(nn.Module):
    """Layers around what is computed of positions in the hundreds."""

    def __init__(self, compute: Compute) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.compute = compute
        self.layer, self.last, self.block = nn.Linear(16, 16), nn.Linear(16, 16), Angles()
        self.lstm = nn.LSTM(16, 16)
        self.table, self.kernel = nn.Parameter(torch.randn(3, 8)), nn.Parameter(torch.randn(16, 3, 3))
        self.register_buffer("frequencies", 100 ** (-torch.arange(8) / 8))
        self.eval()

    def forward(self, x: torch.Tensor, p: torch.Tensor) -> torch.Tensor:
        return self.last(self.layer(x) + self.compute(self, x, p))


def inputs() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(40, 16, generator=generator), torch.randn(40, 3, generator=generator) * 700


def difference(got: torch.Tensor, network: Network) -> str | None:
    return autocast.difference([got], lambda: [Network(network.compute)(*inputs())])


@pytest.mark.parametrize("compute", ANYWAY + COMPILED, ids=lambda each: each.__name__)
def test_a_compiled_program_keeps_float32_where_it_has_switched_autocast_off(compute: Compute, compiled: Compile) -> None:
    network = Network(compute)
    with torch.no_grad():
        got = compiled(network, precision="auto")(*inputs())
    assert difference(got, network) == ""
    assert calls()
    assert not fallbacks()


@pytest.mark.parametrize("compute", ANYWAY + ACCELERATED, ids=lambda each: each.__name__)
def test_an_accelerated_network_keeps_float32_where_it_has_switched_autocast_off(compute: Compute) -> None:
    network = Network(compute)
    with torch.no_grad(), ov_backend.accelerate({"net": network}, Settings(model_caching=False)) as accelerated:
        got = network(*inputs())
        stats = accelerated.stats()["net"]
    assert difference(got, network) == ""
    assert stats["calls"]
    assert not stats["fallbacks"]


def test_the_autocast_of_another_device_does_not_count() -> None:
    """The device computes in bfloat16 what would be so under the CPU's autocast."""
    network = Network(lambda net, x, p: x)
    with torch.no_grad():
        exact = network(*inputs())
        with torch.autocast("cuda", enabled=False), ov_backend.accelerate({"net": network}, Settings(model_caching=False)):
            got = network(*inputs())
    assert autocast.distance(got, exact) > 1e-4


def test_graphs_that_differ_in_what_keeps_float32_have_different_texts() -> None:
    def product(weights: list[torch.Tensor], values: list[torch.Tensor]) -> list[torch.Tensor]:
        return [values[0] @ weights[0]]

    x, weight = torch.randn(3, 4), torch.randn(4, 2)
    plain, kept = trace.trace(product, [weight], [x]), trace.trace(off()(product), [weight], [x])
    assert [is_marked(node) for node in kept.graph.nodes if node.op == "call_function"] == [True]
    assert graph_text(plain) != graph_text(kept)
    assert PREFIX not in graph_text(plain)
