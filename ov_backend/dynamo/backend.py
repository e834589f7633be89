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
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.fx import GraphModule

from ov_backend.dynamo import options as option_names
from ov_backend.dynamo import side_effects
from ov_backend.dynamo.aot_autograd import AotGraph
from ov_backend.dynamo.dynamic_shapes import MAX_WEIGHT_CHANGES, DynamicGraph
from ov_backend.dynamo.fallback import Fallback
from ov_backend.dynamo.graph import DynamoGraph, WeightHolder
from ov_backend.dynamo.recompute_backward import RecomputeBackward
from ov_backend.dynamo.side_effects import SideEffects
from ov_backend.engine.engine import Engine, Network, NetworkHooks
from ov_backend.errors import OVBackendError
from ov_backend.partitioning import int64_range
from ov_backend.settings import Settings

log = logging.getLogger(__name__)

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
    """Statistics of every graph compiled through ``torch.compile`` since the last :func:`reset`.

    ``answered_by`` says what answered the calls that OpenVINO could not: "inductor", "eager", or "" while there were none.
    """
    networks = {name: network for engine in _engines.values() for name, network in list(engine.networks.items())}
    return {name: {**network.stats(), "answered_by": _answered_by(network)} for name, network in networks.items()}


def _answered_by(network: Network) -> str:
    fallback = network.hooks.fallback
    return fallback.graph.answered_by if isinstance(fallback, _JoinedFallback) else ""


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


@dataclass(frozen=True)
class _Variant:
    """One of the networks that a graph may become.

    Attributes:
        wide_integers: its int64 inputs may hold anything.
        weights_are_inputs: its weights change too often to be constants.
    """

    wide_integers: bool = False
    weights_are_inputs: bool = False

    def name(self, graph: str) -> str:
        """The network's name in the statistics."""
        return " ".join([graph, *(["wide"] if self.wide_integers else []), *(["inputs"] if self.weights_are_inputs else [])])


class CompiledDynamoGraph:
    """What Dynamo calls: one of its graphs, answered in the way that its call needs."""

    def __init__(self, gm: GraphModule, engine: Engine, name: str) -> None:
        self.graph, self.name, self.engine = DynamoGraph(gm), name, engine
        self._side_effects: dict[Hashable, SideEffects] = {}
        self._fallback = Fallback(self.graph, engine.settings)
        self._networks: dict[_Variant, tuple[Network, WeightHolder]] = {}
        self._aot: AotGraph | None = None
        self._dynamic = DynamicGraph(self.graph, name, engine.settings, self._add) if engine.settings.dynamic_shapes else None

    def __call__(self, *args: Any) -> Any:
        """Answer one call."""
        full = self.graph.full(args)
        if self.engine.settings.min_block_size == math.inf:
            return self._dry_run(full)
        gradients = torch.is_grad_enabled() and any(getattr(value, "requires_grad", False) for value in full)
        try:
            effects = self._analyze(full, gradients)
            if effects.written or (gradients and (self.engine.settings.aot_autograd or effects.random or effects.aliases)):
                return self._by_aot(full, effects)
            if gradients and any(effects.differentiable):
                return RecomputeBackward.run(self.graph, self.infer, effects.differentiable, full)
        except OVBackendError as error:
            return self._fall_back(error, full)
        return self.infer(full)

    def infer(self, full: Sequence[Any]) -> Any:
        """Answer one call of a graph that only computes, without gradients."""
        wide = not self.engine.settings.truncate_long_and_double and not all(map(int64_range.fits, full))
        if self.engine.settings.debug and not self._networks:
            log.warning("%s", self._report(full))
        if self._dynamic is not None and self._dynamic.wanted and not wide:
            result = self._dynamic(full)
            if result is not NotImplemented:
                return result
        network, holder = self._network(full, wide)
        if self._dynamic is not None:
            self._count_static(network, "an input holds integers beyond 2 ** 20" if wide else self._dynamic.refused)
        with torch.no_grad():
            return network(*holder.hold(full))

    def _count_static(self, network: Network, reason: str) -> None:
        """Count a call whose sizes Dynamo left open, and which is answered by a graph for just these sizes."""
        assert self._dynamic is not None
        if self._dynamic.wanted:
            network.statistics.correct(self.name, f"a static graph for each size, because {reason}", once=True)

    def _add(self, name: str, holder: WeightHolder, hooks: NetworkHooks) -> Network:
        return add_network(self.engine, name, holder, replace(hooks, fallback=_JoinedFallback(self._fallback, holder)))

    def _analyze(self, full: Sequence[Any], gradients: bool) -> SideEffects:
        key = (gradients, tuple(getattr(value, "requires_grad", None) for value in full))
        if key not in self._side_effects:
            self._side_effects[key] = side_effects.analyze(self.graph, full, gradients)
            self._fallback.random = self._side_effects[key].random
        return self._side_effects[key]

    def _network(self, full: Sequence[Any], wide: bool) -> tuple[Network, WeightHolder]:
        """The network that answers: weights as constants, unless they change all the time."""
        variant = _Variant(wide_integers=wide)
        if variant in self._networks and _changes(self._networks[variant][0]) > MAX_WEIGHT_CHANGES:
            variant = replace(variant, weights_are_inputs=True)
            if variant not in self._networks:
                log.warning("The weights of %s keep changing: from now on they are inputs of it, not constants.", self.name)
        if variant not in self._networks:
            holder = WeightHolder(self.graph, [] if variant.weights_are_inputs else self.graph.weights(full), len(full))
            engine = _engine(self.engine.settings.replace(wide_integers=True)) if wide else self.engine
            hooks = NetworkHooks(fallback=_JoinedFallback(self._fallback, holder))
            self._networks[variant] = add_network(engine, variant.name(self.name), holder, hooks), holder
        return self._networks[variant]

    def _by_aot(self, full: Sequence[Any], effects: SideEffects) -> Any:
        if self._dynamic is not None:
            reason = "it writes to its inputs" if effects.written else "AOTAutograd traces every size by itself"
            self._count_static(self._network(full, wide=False)[0], reason)
        if self._aot is None:

            def network(name: str, holder: WeightHolder) -> Network:
                return add_network(self.engine, name, holder, NetworkHooks())

            self._aot = AotGraph(self.graph, self.name, network, effects.written)
        return self._aot(full)

    def _fall_back(self, error: OVBackendError, full: Sequence[Any]) -> Any:
        """What cannot even be prepared for OpenVINO: counted and logged, like every other fallback."""
        network, _ = self._network(full, wide=False)
        network.statistics.fall_back(self.name, str(error))
        if self.engine.settings.fallback == "raise":
            raise error
        return self._fallback(*full)

    def _dry_run(self, full: Sequence[Any]) -> Any:
        if not self._networks:
            self._network(full, wide=False)
            log.warning("%s", self._report(full))
        return self.graph(*full)

    def _report(self, full: Sequence[Any]) -> str:
        from ov_backend.dynamo.explain import of_graph  # a report is made on request only

        return of_graph(self.name, self.graph, full, self.engine.settings).text()


class _JoinedFallback:
    """A graph in PyTorch, called with the inputs that a network takes."""

    def __init__(self, graph: Fallback, holder: WeightHolder) -> None:
        self.graph, self._holder = graph, holder

    def __call__(self, *inputs: Any) -> Any:
        return self.graph(*self._holder.join(inputs))


def add_network(engine: Engine, name: str, holder: WeightHolder, hooks: NetworkHooks) -> Network:
    """A network of the engine for one graph; its name is part of its key, for no two graphs share a program."""
    return engine.network(name, holder, hooks=replace(hooks, host_key=lambda: name, keyed_by_code=False))


def _changes(network: Network) -> int:
    """How often a graph was compiled for other values of its weights."""
    return network.statistics.compiles - max(1, len(network.seen))
