"""The engine: networks that are called with few distinct signatures, and are captured and compiled once for each.

A call takes this path: signature -> compiled program of (signature, code, weights, device) -> run. A missing program is
compiled from the stored graph, or from a graph that is captured first. A call that cannot be accelerated is answered by
PyTorch, and the reason is counted and logged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch

from ov_backend.engine.ahead.history import RememberedCall, Run, match
from ov_backend.engine.hooks import NetworkHooks
from ov_backend.engine.int8.dual_precision_memory import MEASURED, DualPrecisionMemory
from ov_backend.engine.network import Network
from ov_backend.engine.resources import Progress, Resources
from ov_backend.engine.stats import NetworkStats

__all__ = ["Engine", "Network", "NetworkHooks", "Progress"]


_Network = TypeVar("_Network", bound=Network)


class Engine(Resources):
    """Networks and the resources that they share, which it is made with."""

    networks: dict[str, Network]

    def __post_init__(self) -> None:
        super().__post_init__()
        self._retired: dict[str, NetworkStats] = {}

    @property
    def resources(self) -> Resources:
        """What its networks share."""
        return self

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
        return self.add(Network(self, name, module, forward, hooks, statistics))

    def add(self, network: _Network) -> _Network:
        """Make a network, which has this engine's resources, one of the engine's."""
        self.networks[network.name] = network
        return network

    def begin_run(self, model: str, request: str) -> Sequence[RememberedCall]:
        """A run of calls begins; returns those that followed when the same was asked for last, for :meth:`prepare_ahead`.

        The request says in the host's words what is asked for, such as the pictures' size, of what kind of model (``kind_of``).
        """
        self.ahead.cancel()
        self.run = None
        self.begin_picture()
        history = self.history
        if history is None:
            return ()
        self.run = Run(model, request)
        return history.calls(model, request)

    def begin_picture(self) -> None:
        """A picture begins in a run of calls; until :meth:`end_run` none begins without such a word."""
        self.pictures += 1
        self.in_run = True

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
        run, self.run = self.run, None
        self.ahead.cancel()
        if run is not None and completed and self.history is not None:
            self.history.add(run.model, run.finished())
        for network in list(self.networks.values()):
            network.end_run(completed)
        self.in_run = False

    def release(self, name: str) -> None:
        """Release one network; its compiled graphs are evicted when its weights are freed."""
        self.networks.pop(name, None)
        self.compiled.evict(lambda key, entry: entry.network == name and not entry.placement.tensors)

    def retire(self, name: str) -> None:
        """Release one network, and keep its statistics."""
        network = self.networks.get(name)
        if network is not None:
            self._retired[name] = network.statistics
            self.release(name)

    def statistics(self) -> dict[str, NetworkStats]:
        """Of each network there is, and of each that was retired."""
        return self._retired | {name: network.statistics for name, network in list(self.networks.items())}

    def stats(self) -> dict[str, dict[str, Any]]:
        """Per network: captures, graph_hits, compiles, calls, fallbacks, seconds, signatures held."""
        stats = {name: self.counts(name, each) for name, each in self.statistics().items()}
        for name, forms in self.both_forms().items():
            if forms.statistics.int8["state"] == "on":
                stats[name]["int8"] |= {"memory": forms.describe(), "measured": MEASURED}
        return stats

    def both_forms(self) -> dict[str, DualPrecisionMemory]:
        """The networks that int8 was asked for, by name."""
        return {name: each.precision.both for name, each in list(self.networks.items()) if each.statistics.int8}
