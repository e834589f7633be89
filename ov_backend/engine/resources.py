"""What the networks of one engine share: settings, the graph store, compiled graphs, the worker."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from ov_backend import compiler, devices
from ov_backend.cache.lru import CountLRU, MemoryLRU, budget_bytes
from ov_backend.cache.store import GraphStore
from ov_backend.engine.worker import Interruption, Worker
from ov_backend.guards.signature import Signature
from ov_backend.settings import Settings

#: Called as ``progress(network, stage, signature)``, in the worker's thread, when a "capture", a "convert" or a
#: "compile" begins, and with "ready" when all is done or has failed.
Progress = Callable[[str, str, Signature], None]

#: Graphs without weights that are kept in memory (some 20 MB each for a Stable Diffusion UNet); the disk has the others.
MAX_PROGRAMS = 8


class SharingNetwork(Protocol):
    """What the resources ask of a network that uses them."""

    def release(self) -> None:
        """Release weights that their module holds no longer."""

    def clear(self) -> None:
        """Clear refusals and the state of weights and code."""


@dataclass
class Resources:
    """Shared by all networks of an engine.

    Attributes:
        settings: of everything compiled from now on.
        progress: told of every stage.
        store: the graphs on disk, or None.
        interrupted: asked while a call waits for a compile; once true, the call raises ``Interrupted``.
        compiled: the compiled graphs, within the memory budget.
        programs: graphs without weights; they serve every network of the same code, such as another checkpoint's.
        worker: compiles one thing at a time.
        networks: the networks that use them, by name.
        epoch: grows when everything is cleared; a compile that began before is not kept.
    """

    settings: Settings
    progress: Progress | None = None
    store: GraphStore | None = None
    interrupted: Interruption | None = None
    worker: Worker = field(default_factory=Worker)
    networks: dict[str, SharingNetwork] = field(default_factory=dict)
    epoch: int = 0

    def __post_init__(self) -> None:
        """Check the device now, so that a wrong one is one sentence and not a fallback at every call."""
        devices.check(self.settings)
        self.compiled = MemoryLRU(self.settings.memory_mb)
        self.programs = CountLRU(MAX_PROGRAMS)
        if self.store is None and self.settings.model_caching:
            self.store = compiler.open_store(self.settings)

    def configure(self, settings: Settings) -> None:
        """Go on with other settings; what is compiled for the old ones stays, for a return to them.

        Raises:
            DeviceError: the device is not there, or cannot compute in that precision; nothing is changed then.
        """
        devices.check(settings)
        self.settings = settings
        self.compiled.budget = budget_bytes(settings.memory_mb)
        self.compiled.shrink()
        self.store = compiler.open_store(settings) if settings.model_caching else None

    def report(self, network: str, stage: str, signature: Signature) -> None:
        """Tell whoever follows the progress."""
        if self.progress is not None:
            self.progress(network, stage, signature)

    def evict_dead(self) -> int:
        """Evict what was compiled for weights that exist no more; returns how many there were."""
        for network in list(self.networks.values()):
            network.release()
        return self.compiled.evict(lambda key, entry: not entry.placement.exists())

    def clear(self) -> None:
        """Evict everything compiled and clear what is known about the networks; a compile under way is not kept."""
        self.epoch += 1
        self.compiled.evict(lambda key, entry: True)
        self.programs.clear()
        for network in list(self.networks.values()):
            network.clear()
