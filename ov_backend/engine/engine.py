"""The engine: networks that are called with few distinct signatures, and are captured and compiled once for each.

A call takes this path: signature -> compiled program of (signature, code, weights, device) -> run. A missing program is
compiled from the stored graph, or from a graph that is captured first. A call that cannot be accelerated is answered by
PyTorch, and the reason is counted and logged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch

from ov_backend.core.settings import Settings
from ov_backend.engine.ahead.history import RememberedCall, Run, match
from ov_backend.engine.hooks import NetworkHooks
from ov_backend.engine.int8.dual_precision_memory import MEASURED, DualPrecisionMemory
from ov_backend.engine.network import Network
from ov_backend.engine.resources import Progress, Resources
from ov_backend.engine.stats import NetworkStats
from ov_backend.engine.worker import Interruption
from ov_backend.memory.eviction import MemoryLRU
from ov_backend.store.store import GraphStore

__all__ = ["Engine", "Network", "NetworkHooks", "Progress"]


_Network = TypeVar("_Network", bound=Network)


class Engine:
    """Networks and the resources that they share.

    Args:
        settings: for everything compiled from now on.
        progress: called at every stage.
        store: the graph store on disk; None opens the one of the settings.
        interrupted: polled while a call waits for a compile; once it returns true, the call raises ``Interrupted``.
        keeps_unloaded: what is compiled survives its model, within the memory budget, in case the same checkpoint is loaded
            again; otherwise it goes with the model.

    Raises:
        DeviceError: the device does not exist, or cannot compute in that precision.
    """

    def __init__(
        self,
        settings: Settings | None = None,
        progress: Progress | None = None,
        store: GraphStore | None = None,
        interrupted: Interruption | None = None,
        keeps_unloaded: bool = False,
    ) -> None:
        self.resources = Resources(settings or Settings(), progress, store, interrupted, keeps_unloaded=keeps_unloaded)
        self.networks: dict[str, Network] = {}
        self._retired: dict[str, NetworkStats] = {}

    @property
    def settings(self) -> Settings:
        """The settings for everything compiled from now on."""
        return self.resources.settings

    @property
    def store(self) -> GraphStore | None:
        """The graph store on disk, or None."""
        return self.resources.store

    @property
    def compiled(self) -> MemoryLRU:
        """The compiled graphs, within the memory budget."""
        return self.resources.compiled

    @property
    def compiles(self) -> int:
        """How many times a network was compiled; :meth:`stats` has no counts of networks that were released."""
        return self.resources.compiles

    @property
    def low_memory(self) -> dict[str, str | int]:
        """The setting, the bytes of this process's weights that lie on the disk now, and a sentence why not more, or ""."""
        return self.resources.low_memory.as_dict(self.settings)

    def configure(self, settings: Settings) -> None:
        """Change the settings; graphs compiled for the previous ones are kept, in case these return.

        Raises:
            DeviceError: the device does not exist, or cannot compute in that precision; then nothing is changed.
        """
        self.resources.configure(settings)

    def network(
        self,
        name: str,
        module: torch.nn.Module,
        forward: Callable[..., Any] | None = None,
        hooks: NetworkHooks | None = None,
        statistics: NetworkStats | None = None,
    ) -> Network:
        """Accelerate one module; nothing is captured before the first call."""
        forward, hooks = forward or module.forward, hooks or NetworkHooks()
        return self.add(Network(self.resources, name, module, forward, hooks, statistics))

    def add(self, network: _Network) -> _Network:
        """Make a network, which has this engine's resources, one of the engine's."""
        self.networks[network.name] = self.resources.networks[network.name] = network
        return network

    def begin_run(self, model: str, request: str) -> Sequence[RememberedCall]:
        """A run of calls begins; they are noted until its end.

        Args:
            model: names the kind of model, see :func:`ov_backend.engine.ahead.history.kind_of`.
            request: what is asked for, in the host's words, such as the pictures' size.

        Returns:
            the calls that followed when the same was asked for last, for :meth:`prepare_ahead`.
        """
        self.resources.ahead.cancel()
        self.resources.run = None
        self.begin_picture()
        history = self.resources.history
        if history is None:
            return ()
        self.resources.run = Run(model, request)
        return history.calls(model, request)

    def begin_picture(self) -> None:
        """A picture begins in a run of calls; until :meth:`end_run` none begins without such a word."""
        self.resources.pictures += 1
        self.resources.in_run = True

    def prepare_ahead(self, calls: Sequence[RememberedCall], networks: Sequence[Network]) -> int:
        """Prepare remembered calls in the background, in their order; returns how many are begun or wait.

        Weights and code must be as the calls will find them, and nobody else may change them during this call.
        """
        return sum(network.prepare_ahead(signature) for network, signature in match(calls, networks))

    def trace_ahead(self, calls: Sequence[RememberedCall], networks: Sequence[Network]) -> None:
        """Trace what remembered calls will run, in their order.

        That runs the modules' own code: nobody else may run or change a module meanwhile.
        """
        for network, signature in match(calls, networks):
            network.trace_ahead(signature)

    def is_prepared(self, calls: Sequence[RememberedCall], networks: Sequence[Network]) -> bool:
        """Whether the calls of a remembered run, one of a UNet among them, find all that they need compiled.

        Weights and code must be as the calls will find them, and nobody else may change them during this call.
        """
        matched = match(calls, networks)
        whole = len(matched) == len(calls) and any(call.role == "unet" for call in calls)
        return whole and all(network.is_prepared(signature) for network, signature in matched)

    def end_run(self, completed: bool = True) -> None:
        """The run is over; what it has called is remembered if it was completed, and what waits to be prepared is dropped."""
        run, self.resources.run = self.resources.run, None
        self.resources.ahead.cancel()
        history = self.resources.history
        if run is not None and completed and history is not None:
            history.add(run.model, run.finished())
        for network in list(self.networks.values()):
            network.end_run(completed)
        self.resources.in_run = False

    def release(self, name: str) -> None:
        """Release one network; its compiled graphs are evicted when its weights are freed."""
        self.networks.pop(name, None)
        self.resources.networks.pop(name, None)
        self.resources.compiled.evict(lambda key, entry: entry.network == name and not entry.placement.tensors)

    def retire(self, name: str) -> None:
        """Release one network, and keep its statistics."""
        network = self.networks.get(name)
        if network is not None:
            self._retired[name] = network.statistics
            self.release(name)

    def evict_dead(self) -> int:
        """Evict graphs compiled for weights that no longer exist; returns their number.

        This happens before every compile; a host that drops a model can call it at once.
        """
        return self.resources.evict_dead()

    def stats(self) -> dict[str, dict[str, Any]]:
        """Per network: captures, graph_hits, compiles, calls, fallbacks, seconds, signatures held."""
        statistics = self._retired | {name: network.statistics for name, network in list(self.networks.items())}
        stats = {name: self.resources.stats(name, each) for name, each in statistics.items()}
        for name, forms in self.both_forms().items():
            if forms.statistics.int8["state"] == "on":
                stats[name]["int8"] |= {"memory": forms.describe(), "measured": MEASURED}
        return stats

    def both_forms(self) -> dict[str, DualPrecisionMemory]:
        """The networks that int8 was asked for, by name."""
        return {name: each.precision.both for name, each in list(self.networks.items()) if each.statistics.int8}

    def clear(self) -> None:
        """Evict every compiled graph and clear the state of all networks; later calls compile again."""
        self.resources.clear()
