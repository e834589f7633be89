"""The engine: networks that are called with few distinct signatures, each captured once and compiled per signature.

One call takes this way: signature -> compiled program of (signature, code, weights, device) -> run. What is missing on
the way is made: compiled from the stored graph, or captured first. Whatever cannot be done leaves the call to PyTorch,
with the reason counted and said.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from ov_backend import devices
from ov_backend import compiler as graphs
from ov_backend.cache.store import GraphStore
from ov_backend.engine.worker import Interruption, Jobs
from ov_backend.cache.lru import CountLRU, MemoryLRU, budget_bytes
from ov_backend.engine.network import Network
from ov_backend.settings import Settings
from ov_backend.guards.signature import Signature

__all__ = ["Engine", "Network", "Progress"]

#: Called as ``progress(network, stage, signature)``, in the worker's thread, when a "capture", a "convert" or a
#: "compile" begins, and with "ready" when all is done or has failed.
Progress = Callable[[str, str, Signature], None]


#: Graphs without weights that are kept in memory (some 20 MB each for a Stable Diffusion UNet); the disk has the others.
MAX_PROGRAMS = 8


@dataclass
class Engine:
    """Settings, the graph store and the compiled graphs that all its networks share.

    Attributes:
        settings: of everything compiled from now on.
        progress: told of every stage.
        store: the graphs on disk, or None.
        interrupted: asked while a call waits for something to be made; once true, the call raises ``Interrupted``.
    """

    settings: Settings = field(default_factory=Settings)
    progress: Progress | None = None
    store: GraphStore | None = None
    interrupted: Interruption | None = None

    def __post_init__(self) -> None:
        """Check the device now, so that a wrong one is one sentence and not a fallback at every call."""
        devices.check(self.settings)
        self.compiled = MemoryLRU(self.settings.memory_mb)
        self.networks: dict[str, Network] = {}
        #: Graphs without weights, which serve every network of the same code: another checkpoint is another network.
        self.programs = CountLRU(MAX_PROGRAMS)
        self.jobs = Jobs()
        self.epoch = 0
        if self.store is None and self.settings.model_caching:
            self.store = graphs.open_store(self.settings)

    def configure(self, settings: Settings) -> None:
        """Go on with other settings: what is compiled for the old ones stays, for a return to them.

        Raises:
            DeviceError: the device is not there, or cannot compute in that precision; nothing is changed then.
        """
        devices.check(settings)
        self.settings = settings
        self.compiled.budget = budget_bytes(settings.memory_mb)
        self.compiled.shrink()
        self.store = graphs.open_store(settings) if settings.model_caching else None

    def network(
        self, name: str, module: torch.nn.Module, forward: Callable[..., Any] | None = None, keyed_by_code: bool = True
    ) -> Network:
        """The accelerated form of one module; nothing is captured before its first call."""
        self.networks[name] = Network(self, name, module, forward or module.forward, keyed_by_code)
        return self.networks[name]

    def discard(self, name: str) -> None:
        """Let go of one network; what was compiled for it goes when its weights do."""
        self.networks.pop(name, None)

    def prune(self) -> int:
        """Let go of what was compiled for weights that exist no more, and of their memory; how many there were.

        Done before every compile; a host that drops a model may ask for it at once.
        """
        for network in list(self.networks.values()):
            network.release()
        return self.compiled.drop(lambda key, ready: not ready.placement.exists())

    def stats(self) -> dict[str, dict[str, Any]]:
        """Per network: captures, graph_hits, compiles, calls, fallbacks, seconds, signatures held."""
        return {name: network.stats() for name, network in list(self.networks.items())}  # read while others call

    def clear(self) -> None:
        """Let go of every compiled graph and everything known about the networks; all of it is made anew when needed."""
        self.epoch += 1  # what is being made now is not kept
        self.compiled.drop(lambda key, ready: True)
        self.programs.clear()
        for network in list(self.networks.values()):
            network.forget()
