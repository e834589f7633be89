"""The engine: networks that are called with few distinct signatures, each captured once and compiled per signature.

One call takes this way: signature -> compiled program of (signature, code, weights, device) -> run. What is missing on
the way is compiled from the stored graph, or captured first. Whatever cannot be done leaves the call to PyTorch,
and the reason is counted and logged.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ov_backend.cache.lru import MemoryLRU
from ov_backend.cache.store import GraphStore
from ov_backend.engine.network import Network, NetworkHooks
from ov_backend.engine.resources import Progress, Resources
from ov_backend.engine.worker import Interruption
from ov_backend.settings import Settings

__all__ = ["Engine", "Network", "NetworkHooks", "Progress"]


class Engine:
    """Networks and what they share.

    Args:
        settings: of everything compiled from now on.
        progress: told of every stage.
        store: the graphs on disk; None opens that of the settings.
        interrupted: asked while a call waits for a compile; once true, the call raises ``Interrupted``.

    Raises:
        DeviceError: the device is not there, or cannot compute in that precision.
    """

    def __init__(
        self,
        settings: Settings | None = None,
        progress: Progress | None = None,
        store: GraphStore | None = None,
        interrupted: Interruption | None = None,
    ) -> None:
        self.resources = Resources(settings or Settings(), progress, store, interrupted)
        self.networks: dict[str, Network] = {}

    @property
    def settings(self) -> Settings:
        """The settings of everything compiled from now on."""
        return self.resources.settings

    @property
    def store(self) -> GraphStore | None:
        """The graphs on disk."""
        return self.resources.store

    @property
    def compiled(self) -> MemoryLRU:
        """The compiled graphs, within the memory budget."""
        return self.resources.compiled

    def configure(self, settings: Settings) -> None:
        """Go on with other settings; what is compiled for the old ones stays, for a return to them.

        Raises:
            DeviceError: the device is not there, or cannot compute in that precision; nothing is changed then.
        """
        self.resources.configure(settings)

    def network(
        self,
        name: str,
        module: torch.nn.Module,
        forward: Callable[..., Any] | None = None,
        hooks: NetworkHooks | None = None,
    ) -> Network:
        """The accelerated form of one module; nothing is captured before its first call."""
        network = Network(self.resources, name, module, forward or module.forward, hooks or NetworkHooks())
        self.networks[name] = self.resources.networks[name] = network
        return network

    def release(self, name: str) -> None:
        """Release one network; what was compiled for it goes when its weights do."""
        self.networks.pop(name, None)
        self.resources.networks.pop(name, None)

    def evict_dead(self) -> int:
        """Evict what was compiled for weights that exist no more; returns how many there were.

        This happens before every compile; a host that drops a model may ask for it at once.
        """
        return self.resources.evict_dead()

    def stats(self) -> dict[str, dict[str, Any]]:
        """Per network: captures, graph_hits, compiles, calls, fallbacks, seconds, signatures held."""
        return {name: network.stats() for name, network in list(self.networks.items())}  # read while others call

    def clear(self) -> None:
        """Evict every compiled graph and clear what is known about the networks; all of it is made anew when needed."""
        self.resources.clear()
