"""A network of convolutions and matrix products that is worth computing in 8 bits, pictures of it, and what it computed in."""

from __future__ import annotations

import pytest
import torch

from ov_backend import Settings
from ov_backend.engine.engine import Engine, Network, NetworkHooks
from ov_backend.model.runtime.saturation import multiplies_8_bits_exactly

CHANNELS = 32
needs_vnni = pytest.mark.skipif(not multiplies_8_bits_exactly(), reason="the CPU has no VNNI, so int8 is not used")


class Denoiser(torch.nn.Module):
    """pictures [B, 32, H, W] and times [B, 16] -> [B, H/2 * W/2, 32]."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.time = torch.nn.Linear(16, 64)
        self.first = torch.nn.Conv2d(CHANNELS, 64, 3, padding=1)
        self.norm = torch.nn.GroupNorm(8, 64)
        self.down = torch.nn.Conv2d(64, 64, 3, stride=2, padding=1)
        self.query, self.key = torch.nn.Linear(64, 64), torch.nn.Linear(64, 64, bias=False)
        self.gate = torch.nn.Linear(64, 128)
        self.last = torch.nn.Linear(64, CHANNELS)
        self.eval()

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        h = self.first(x) + self.time(time)[:, :, None, None]
        h = self.down(torch.nn.functional.silu(self.norm(h)))
        h = h.flatten(2).transpose(1, 2).contiguous()
        h = torch.nn.functional.layer_norm(h + self.query(h) * torch.sigmoid(self.key(h)), (64,))
        value, gate = self.gate(h).chunk(2, -1)
        return self.last(torch.nn.functional.silu(value)) + torch.nn.functional.gelu(gate).mean(-1, keepdim=True)


class Cancelling(torch.nn.Module):
    """Two products that nearly cancel each other, so that the rounding of 8 bits is most of the result."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = torch.nn.Linear(CHANNELS, 64), torch.nn.Linear(CHANNELS, 64)
        self.b.load_state_dict({name: -1.001 * value for name, value in self.a.state_dict().items()})
        self.eval()

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        x = x.flatten(2).transpose(1, 2).contiguous()
        return self.a(x.sin()) + self.b(x.sin())


def network_of(settings: Settings, module: torch.nn.Module) -> Network:
    """A network of an engine of its own to which int8 applies."""
    return Engine(settings).network("unet", module, hooks=NetworkHooks(quantizable=True))


def call_of(seed: int, size: int = 16) -> tuple[torch.Tensor, torch.Tensor]:
    """Seeded arguments of one call."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(2, CHANNELS, size, size, generator=generator), torch.randn(2, 16, generator=generator)


def picture(network: Network, steps: int = 8, size: int = 16) -> list[torch.Tensor]:
    """The answers of one picture's calls."""
    network.begin_run()
    with torch.no_grad():
        return [network(*call_of(step, size)) for step in range(steps)]


def forms(network: Network) -> set[str]:
    """The forms in which a network is compiled now, by their first words; the device's own is ""."""
    return {key.form.split()[0] if key.form else "" for key in network.resources.compiled}


def expected(module: torch.nn.Module, steps: int = 2, size: int = 16) -> list[torch.Tensor]:
    """What PyTorch answers to the calls of a picture."""
    with torch.no_grad():
        return [module(*call_of(step, size)) for step in range(steps)]


def error(actual: torch.Tensor, expected: torch.Tensor) -> float:
    """The relative error in the 2-norm."""
    return float((actual - expected).norm() / expected.norm())


def runtime_types(network: Network) -> dict[str, set[str]]:
    """The types in which what was compiled last computes, by kind of layer."""
    compiled = network.resources.compiled
    (part,) = compiled.peek(list(compiled)[-1]).value.program.parts.values()
    types: dict[str, set[str]] = {}
    for node in part._request.get_compiled_model().get_runtime_model().get_ops():
        kind, element_type = (node.get_rt_info()[name].astype(str) for name in ("layerType", "runtimePrecision"))
        types.setdefault(kind, set()).add(element_type)
    return types
