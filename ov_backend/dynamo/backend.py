"""The ``torch.compile`` backend, on one screen.

    capture -> lower -> partition -> convert -> (graph store) -> bind -> compile -> run

Dynamo captures; what it hands over is one network among others of an engine, and goes the same way as those that the
engine traces itself: traced to ATen, its weights as slots, compiled once for every combination of shapes. A graph that
writes to its inputs or hands back views of them goes by way of AOTAutograd first, and so does training.
"""

from __future__ import annotations

import itertools
import logging
import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import torch
from torch.fx import GraphModule

from ov_backend.dynamo import side_effects as hazards
from ov_backend.partitioning import int64_range as integers
from ov_backend.dynamo import options as option_names
from ov_backend.dynamo.dynamic_shapes import DynamicGraph
from ov_backend.dynamo.graph import DynamoGraph, Holder
from ov_backend.engine.engine import Engine, Network
from ov_backend.errors import OVBackendError
from ov_backend.dynamo.recompute_backward import Recomputed
from ov_backend.dynamo.side_effects import Hazards
from ov_backend.dynamo.fallback import Plain
from ov_backend.settings import Settings
from ov_backend.dynamo.aot_autograd import AotGraph

log = logging.getLogger(__name__)

NAME = "openvino_fx"

#: After this many compiles for new values of the weights, the weights of a graph become inputs.
_MAX_WEIGHT_CHANGES = 3


def openvino_fx(
    gm: GraphModule, example_inputs: Sequence[Any], *, options: Mapping[str, Any] | None = None, **kwargs: Any
) -> Callable[..., Any]:
    """Compile one Dynamo graph: ``torch.compile(model, backend="openvino_fx", options={...})``.

    Args:
        gm: Dynamo's graph.
        example_inputs: its inputs; nothing is compiled before the first call, which brings the real ones.
        options: see :mod:`ov_backend.dynamo.options` and :class:`ov_backend.Settings`.
        kwargs: what ``torch.compile`` passes to every backend (``mode``); it has no meaning here.

    Returns:
        A callable of the graph's inputs.

    Raises:
        SettingsError: an option is unknown or has an unusable value.
        DeviceError: the device is not there, or cannot compute in that precision.
    """
    settings = option_names.parse(options)
    return CompiledDynamoGraph(gm, _engine(settings), f"graph {next(_numbers)}")


def openvino_ts(
    gm: GraphModule, example_inputs: Sequence[Any], *, options: Mapping[str, Any] | None = None, **kwargs: Any
) -> Callable[..., Any]:
    """As :func:`openvino_fx`, with every subgraph traced to TorchScript and converted from there."""
    return openvino_fx(gm, example_inputs, options={"converter": "ts", **(options or {})}, **kwargs)


def stats() -> dict[str, dict[str, Any]]:
    """Statistics of every graph compiled through ``torch.compile`` since the last :func:`reset`."""
    return {name: values for engine in _engines.values() for name, values in engine.stats().items()}


def compiled_by() -> set[str]:
    """What answered the calls that OpenVINO could not, since the last :func:`reset`: "inductor", "eager"."""
    plains = (network.plain for engine in _engines.values() for network in engine.networks.values())
    return {plain.graph.compiled_by for plain in plains if isinstance(plain, _Joined)} - {""}


def reset() -> None:
    """Let go of everything compiled; ``torch._dynamo.reset`` calls this. The store on disk is left as it is."""
    for engine in _engines.values():
        engine.clear()
    _engines.clear()


#: Dynamo finds it here when it resets.
openvino_fx.reset = openvino_ts.reset = reset  # type: ignore[attr-defined]

#: One engine for each set of options, so that no option of one call reaches another. The registry of this module.
_engines: dict[Settings, Engine] = {}
_numbers = itertools.count()


def _engine(settings: Settings) -> Engine:
    if settings not in _engines:
        _engines[settings] = Engine(settings)
    return _engines[settings]


class CompiledDynamoGraph:
    """What Dynamo calls: one of its graphs, answered in the way that its call needs."""

    def __init__(self, gm: GraphModule, engine: Engine, name: str) -> None:
        self.graph, self.name, self.engine = DynamoGraph(gm), name, engine
        self._hazards: dict[Hashable, Hazards] = {}
        self._plain = Plain(self.graph, engine.settings)
        self._networks: dict[Hashable, tuple[Network, Holder]] = {}
        self._aot: AotGraph | None = None
        self._dynamic = DynamicGraph(self.graph, name, engine.settings, self._add) if engine.settings.dynamic_shapes else None

    def __call__(self, *args: Any) -> Any:
        """Answer one call."""
        full = self.graph.full(args)
        if self.engine.settings.min_block_size == math.inf:
            return self._dry_run(full)
        gradients = torch.is_grad_enabled() and any(getattr(value, "requires_grad", False) for value in full)
        try:
            found = self._find(full, gradients)
            if found.written or (gradients and (self.engine.settings.aot_autograd or found.random or found.aliases)):
                return self._by_aot(full, found)
            if gradients and any(found.differentiable):
                return Recomputed.run(self.graph, self.infer, found.differentiable, full)
        except OVBackendError as error:
            return self._fall_back(error, full)
        return self.infer(full)

    def infer(self, full: Sequence[Any]) -> Any:
        """Answer one call of a graph that only computes, without gradients."""
        wide = not self.engine.settings.truncate_long_and_double and not all(map(integers.fits, full))
        if self.engine.settings.debug and not self._networks:
            log.warning("%s", self._report(full))
        if self._dynamic is not None and self._dynamic.wanted and not wide:
            result = self._dynamic(full)
            if result is not NotImplemented:
                return result
        network, holder = self._network(full, wide)
        if self._dynamic is not None:
            self._static(network, "an input holds integers beyond 2 ** 20" if wide else self._dynamic.refused)
        with torch.no_grad():
            return network(*holder.hold(full))

    def _static(self, network: Network, why: str) -> None:
        """Count a call whose sizes Dynamo left open, and which is answered by a graph for just these sizes."""
        assert self._dynamic is not None
        if self._dynamic.wanted:
            network.statistics.correct(self.name, f"a static graph for each size, because {why}", once=True)

    def _add(self, name: str, holder: Holder) -> Network:
        return add_network(self.engine, name, holder, _Joined(self._plain, holder))

    def _find(self, full: Sequence[Any], gradients: bool) -> Hazards:
        key = (gradients, tuple(getattr(value, "requires_grad", None) for value in full))
        if key not in self._hazards:
            self._hazards[key] = hazards.find(self.graph, full, gradients)
            self._plain.random = self._hazards[key].random
        return self._hazards[key]

    def _network(self, full: Sequence[Any], wide: bool) -> tuple[Network, Holder]:
        """The network that answers: weights as constants, unless they change all the time."""
        key = ("wide" if wide else "", "constants")
        known = self._networks.get(key)
        if known is not None and _changes(known[0]) > _MAX_WEIGHT_CHANGES:
            if (key[0], "inputs") not in self._networks:
                log.warning("The weights of %s keep changing: from now on they are inputs of it, not constants.", self.name)
            key = (key[0], "inputs")
        if key not in self._networks:
            weights = self.graph.weights(full) if key[1] == "constants" else []
            holder = Holder(self.graph, weights, len(full))
            engine = _engine(self.engine.settings.replace(wide_integers=True)) if wide else self.engine
            name = " ".join([self.name, *filter(None, (key[0], key[1].replace("constants", "")))])
            self._networks[key] = add_network(engine, name, holder, _Joined(self._plain, holder)), holder
        return self._networks[key]

    def _by_aot(self, full: Sequence[Any], found: Hazards) -> Any:
        if self._dynamic is not None:
            what = "it writes to its inputs" if found.written else "AOTAutograd traces every size by itself"
            self._static(self._network(full, wide=False)[0], what)
        if self._aot is None:

            def network(name: str, holder: Holder) -> Network:
                return add_network(self.engine, name, holder)

            self._aot = AotGraph(self.graph, self.name, network, found.written)
        return self._aot(full)

    def _fall_back(self, error: OVBackendError, full: Sequence[Any]) -> Any:
        """What cannot even be prepared for OpenVINO: counted and said, like every other fallback."""
        network, _ = self._network(full, wide=False)
        network.statistics.fall_back(self.name, str(error))
        if self.engine.settings.fallback == "raise":
            raise error
        return self._plain(*full)

    def _dry_run(self, full: Sequence[Any]) -> Any:
        if not self._networks:
            self._network(full, wide=False)
            log.warning("%s", self._report(full))
        return self.graph(*full)

    def _report(self, full: Sequence[Any]) -> str:
        from ov_backend.report import coverage as report  # loaded by those who ask for it

        return report.of_graph(self.name, self.graph, full, self.engine.settings).text()


class _Joined:
    """A graph in PyTorch, called with the inputs that a network takes."""

    def __init__(self, graph: Plain, holder: Holder) -> None:
        self.graph, self._holder = graph, holder

    def __call__(self, *inputs: Any) -> Any:
        return self.graph(*self._holder.join(inputs))


def add_network(engine: Engine, name: str, holder: Holder, plain: Callable[..., Any] | None = None) -> Network:
    """A network of the engine for one graph; its name is part of its key, for no two graphs share a program."""
    network = engine.network(name, holder, keyed_by_code=False)
    network.host_key = lambda: name
    if plain is not None:
        network.plain = plain
    return network


def _changes(network: Network) -> int:
    """How often a graph was compiled for other values of its weights."""
    return network.statistics.compiles - max(1, len(network.seen))
