"""The ``torch.compile`` backend.

    capture -> lower -> partition -> convert -> (graph store) -> bind -> compile -> run

Each of Dynamo's graphs becomes a network of an engine, like the modules that the engine traces itself: traced to ATen with
lifted weights, and compiled once for every combination of shapes. A graph that writes to its inputs, returns views of them, or
is used for training, goes through AOTAutograd first.
"""

from __future__ import annotations

import functools
import itertools
import logging
import math
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.fx import GraphModule

from ov_backend.core.errors import CaptureError, OVBackendError
from ov_backend.core.settings import Settings
from ov_backend.engine.engine import Engine, Network, NetworkHooks
from ov_backend.guards import autocast
from ov_backend.torch_compile import side_effects
from ov_backend.torch_compile.aot_autograd import AotGraph
from ov_backend.torch_compile.dynamic_shapes import MAX_WEIGHT_CHANGES, DynamicGraph
from ov_backend.torch_compile.fallback import Answered, Fallback
from ov_backend.torch_compile.frames import WithoutGraph
from ov_backend.torch_compile.graph import DynamoGraph, WeightHolder
from ov_backend.torch_compile.options import parse as parse_options
from ov_backend.torch_compile.parts import Parts, untraceable
from ov_backend.torch_compile.recompute_backward import RecomputeBackward
from ov_backend.torch_compile.side_effects import SideEffects
from ov_backend.trace.partitioning import int64_range

log = logging.getLogger(__name__)


def openvino_fx(
    gm: GraphModule, example_inputs: Sequence[Any], *, options: Mapping[str, Any] | None = None, **kwargs: Any
) -> Callable[..., Any]:
    """Compile one Dynamo graph: ``torch.compile(model, backend="openvino_fx", options={...})``.

    Args:
        gm: Dynamo's graph.
        example_inputs: not used; nothing is compiled before the first call, which passes the real inputs.
        options: see :mod:`ov_backend.torch_compile.options` and :class:`ov_backend.Settings`.
        kwargs: not used; ``torch.compile`` passes ``mode`` to every backend.

    Returns:
        A callable of the graph's inputs.

    Raises:
        SettingsError: an option is unknown or has an unusable value.
        DeviceError: the device does not exist, or cannot compute in that precision.
    """
    settings = parse_options(options)
    return CompiledDynamoGraph(gm, _engine, settings, f"graph {next(_numbers)}")


def openvino_ts(
    gm: GraphModule, example_inputs: Sequence[Any], *, options: Mapping[str, Any] | None = None, **kwargs: Any
) -> Callable[..., Any]:
    """As :func:`openvino_fx`, but every subgraph is traced to TorchScript and converted from that."""
    return openvino_fx(gm, example_inputs, options={"converter": "ts", **(options or {})}, **kwargs)


def stats() -> dict[str, dict[str, Any]]:
    """Statistics of every graph compiled through ``torch.compile`` since the last :func:`reset`, by name, such as "graph 0".

    Each has counts (captures, graph_hits, compiles, calls in OpenVINO, fallbacks by reason) and seconds by stage.
    A function of which Dynamo makes no graph has an entry too, under its name and place, with the reason among its fallbacks.
    ``answered_by`` says what answered the calls that OpenVINO could not: "inductor", "eager", or "" if there were none.
    """
    networks = {name: each for engine in list(_engines.values()) for name, each in engine.stats().items()}
    named = {name: {**each, "answered_by": _answered.get(name, Answered()).by} for name, each in networks.items()}
    return {**named, **_without_graph.stats()}


def reset() -> None:
    """Release everything compiled; ``torch._dynamo.reset`` calls this. The graph store on disk is kept."""
    with _registering:
        engines = list(_engines.values())
        _engines.clear()
        _answered.clear()
        _without_graph.clear()
    for engine in engines:
        engine.clear()


#: Dynamo calls this attribute of a backend when it resets.
openvino_fx.reset = openvino_ts.reset = reset  # type: ignore[attr-defined]

#: One engine per set of options, so that the options of one call do not affect another.
_engines: dict[Settings, Engine] = {}
#: By network, what answered the last call that OpenVINO could not.
_answered: dict[str, Answered] = {}
_without_graph = WithoutGraph()
_numbers = itertools.count()
_registering = threading.Lock()


#: Dynamo's watch calls them, see :mod:`ov_backend.torch_compile.frames`.
frame_given_up, frames_broken = _without_graph.give_up, _without_graph.note
#: For those who give Dynamo these functions themselves.
openvino_fx.frame_given_up = openvino_ts.frame_given_up = frame_given_up  # type: ignore[attr-defined]
openvino_fx.frames_broken = openvino_ts.frames_broken = frames_broken  # type: ignore[attr-defined]


def _engine(settings: Settings) -> Engine:
    with _registering:
        if settings not in _engines:
            _engines[settings] = Engine(settings)
            if settings.debug:
                from ov_backend.torch_compile.reporter import convert_and_log  # imported only if a report is requested

                _engines[settings].resources.convert = convert_and_log
        return _engines[settings]


@dataclass(frozen=True)
class _Variant:
    """One of the networks for a graph: for int64 inputs of any value, or with weights that change too often to be constants."""

    wide_integers: bool = False
    weights_are_inputs: bool = False

    def name(self, graph: str) -> str:
        """The network's name in the statistics."""
        return " ".join([graph, *(["wide"] if self.wide_integers else []), *(["inputs"] if self.weights_are_inputs else [])])


class CompiledDynamoGraph:
    """One of Dynamo's graphs, compiled: it chooses how to answer each call.

    ``engines`` gives the engine for settings; :attr:`made` has the engines and names of all networks that were made for it.
    """

    def __init__(self, gm: GraphModule, engines: Callable[[Settings], Engine], settings: Settings, name: str) -> None:
        self.graph, self.name, self.engine, self._engines = DynamoGraph(gm), name, engines(settings), engines
        engine = self.engine
        self._side_effects: dict[Hashable, SideEffects] = {}
        self._fallback = Fallback(self.graph, engine.settings)
        self.made: list[tuple[Engine, str]] = []
        weakref.finalize(self, _retire, self.made).atexit = False
        self._networks: dict[_Variant, tuple[Network, WeightHolder]] = {}
        self._adding = threading.Lock()  # of networks
        self._aot: AotGraph | None = None
        self._parts: Parts | None = None
        own: Any = weakref.proxy(self)  # not in a circle, so that it is freed at once
        self._dynamic = DynamicGraph(self.graph, name, engine.settings, functools.partial(CompiledDynamoGraph._add, own))

    def __call__(self, *args: Any) -> Any:
        """Answer one call."""
        return self.graph.wrapped(self._answer(self.graph.full(args)))

    def _answer(self, full: Sequence[Any]) -> Any:
        if self.engine.settings.min_block_size == math.inf:
            return self._dry_run(full)
        gradients = torch.is_grad_enabled() and any(getattr(value, "requires_grad", False) for value in full)
        try:
            if self._parts is not None or self._divides(full, gradients):
                return self._in_parts(full)
            effects = self._analyze(full, gradients)
            if effects.written or (gradients and (self.engine.settings.aot_autograd or effects.random or effects.aliases)):
                return self._by_aot(full, effects)
            if not gradients and any(effects.differentiable) and (effects.aliases or self.graph.enables_gradients):
                raise OVBackendError("it returns a tensor that asks for gradients, under torch.no_grad()")
            if gradients and any(effects.differentiable):
                self._analyze(full, gradients=False)  # what only runs with gradients, such as a tensor's hook, is PyTorch's
                return RecomputeBackward.run(self.graph, self.infer, effects.differentiable, full)
        except OVBackendError as error:
            return self._fall_back(error, full)
        return self.infer(full)

    def _divides(self, full: Sequence[Any], gradients: bool) -> bool:
        """Divide a graph that cannot be traced as a whole; whether that is so."""
        try:
            self._analyze(full, gradients)
        except CaptureError:
            apart = untraceable(self.graph, full, gradients)
            if not apart:
                raise
            self._parts = Parts(self.graph, apart, self._part)
            self._network(full, wide=False)[0].statistics.in_pytorch = dict(Counter(self._parts.operators))
        return self._parts is not None

    def _part(self, gm: GraphModule, number: int) -> CompiledDynamoGraph:
        part = CompiledDynamoGraph(gm, self._engines, self.engine.settings, f"{self.name} part {number}")
        part.made = self.made  # they are retired together
        return part

    @property
    def apart(self) -> tuple[Sequence[str], str]:
        """The operators that run as in eager between its parts, and why."""
        return ((), "") if self._parts is None else (self._parts.operators, self._parts.reason)

    def _in_parts(self, full: Sequence[Any]) -> Any:
        """Answer one call by the parts; it counts as OpenVINO's where one of them has been."""
        assert self._parts is not None
        before = self._calls_of_parts()
        result = self._parts(full)
        statistics = self._network(full, wide=False)[0].statistics
        if self._calls_of_parts() > before:
            statistics.calls += 1
            statistics.correct(self.name, f"in parts, because {self._parts.reason}", once=True)
        else:
            statistics.fall_back(self.name, self._parts.reason)
        return result

    def _calls_of_parts(self) -> int:
        networks = (engine.networks.get(name) for engine, name in self.made if name != self.name)
        return sum(network.statistics.calls for network in networks if network is not None)

    def infer(self, full: Sequence[Any]) -> Any:
        """Answer one call of a graph without side effects, without gradients."""
        wide = not self.engine.settings.truncate_long_and_double and not all(map(int64_range.fits, full))
        wanted = self._dynamic.wanted(full)
        if wanted and not wide:
            result = self._dynamic(full)
            if result is not NotImplemented:
                return result
        network, holder = self._network(full, wide)
        if wanted:
            self._count_static(network, "an input holds integers beyond 2 ** 20" if wide else self._dynamic.refusal)
        with torch.no_grad():
            return holder.answer(network, full)

    def _count_static(self, network: Network, reason: str) -> None:
        """Count a call that a static graph answers, although one with dynamic dimensions is wanted."""
        network.statistics.correct(self.name, f"a static graph for each size, because {reason}", once=True)

    def _add(self, name: str, holder: WeightHolder, hooks: NetworkHooks) -> Network:
        return self._new(self.engine, name, holder, replace(hooks, fallback=_NetworkFallback(self._fallback, holder)))

    def _new(self, engine: Engine, name: str, holder: WeightHolder, hooks: NetworkHooks) -> Network:
        """A network of the engine, which is retired with this graph; its name is part of its key: graphs share no programs."""
        self.made.append((engine, name))
        if hooks.fallback is not None:
            _answered[name] = self._fallback.answered
        return engine.network(name, holder, hooks=replace(hooks, host_key=lambda: name, watched=False))

    def _analyze(self, full: Sequence[Any], gradients: bool) -> SideEffects:
        key = (gradients, tuple(getattr(value, "requires_grad", None) for value in full))
        effects = self._side_effects.get(key)
        if effects is None:
            job = functools.partial(side_effects.analyze, self.graph.traced, full, gradients, autocast.of_cpu())
            effects = self._side_effects[key] = self.engine.resources.worker.run((self, key), job)
            self._fallback.random = effects.random
        return effects

    def _network(self, full: Sequence[Any], wide: bool) -> tuple[Network, WeightHolder]:
        """The network that answers a call; weights are constants, unless they change too often."""
        with self._adding:
            return self._network_of(full, _Variant(wide_integers=wide))

    def _network_of(self, full: Sequence[Any], variant: _Variant) -> tuple[Network, WeightHolder]:
        if variant in self._networks and _changes(self._networks[variant][0]) > MAX_WEIGHT_CHANGES:
            variant = replace(variant, weights_are_inputs=True)
            if variant not in self._networks:
                log.warning("Calls of %s bring ever new weights: from now on they are its inputs, not constants.", self.name)
        if variant not in self._networks:
            holder = WeightHolder(self.graph, [] if variant.weights_are_inputs else self.graph.weights(full), len(full))
            engine = self._engines(self.engine.settings.replace(wide_integers=True)) if variant.wide_integers else self.engine
            fallback, function = _NetworkFallback(self._fallback, holder), str(self.graph.gm.graph.python_code("self").src)
            hooks = NetworkHooks(fallback=fallback, quantizable=not variant.weights_are_inputs, function=function)
            self._networks[variant] = self._new(engine, variant.name(self.name), holder, hooks), holder
        return self._networks[variant]

    def _by_aot(self, full: Sequence[Any], effects: SideEffects) -> Any:
        if self._dynamic.wanted(full):
            reason = "it writes to its inputs" if effects.written else "AOTAutograd traces every size by itself"
            self._count_static(self._network(full, wide=False)[0], reason)
        with self._adding:
            if self._aot is None:
                self._aot = AotGraph(self.graph, self.name, self._new_of_aot, effects)
        return self._aot(full)

    def _new_of_aot(self, name: str, holder: WeightHolder) -> Network:
        return self._new(self.engine, name, holder, NetworkHooks())

    def _fall_back(self, error: OVBackendError, full: Sequence[Any]) -> Any:
        """Answer a call of a graph that cannot be prepared for OpenVINO; counted and logged like every other fallback."""
        network, _ = self._network(full, wide=False)
        network.statistics.fall_back(self.name, str(error))
        if self.engine.settings.fallback == "raise":
            raise error
        return self._fallback(*full)

    def _dry_run(self, full: Sequence[Any]) -> Any:
        """Answer a call by PyTorch, and report what would run in OpenVINO, once."""
        if self._networks:
            return self.graph(*full)
        from ov_backend.torch_compile.reporter import Reporter  # imported only if a report is requested

        self._network(full, wide=False)
        reporter = Reporter(CompiledDynamoGraph, self.engine.settings)
        result = reporter.add(self.graph.gm, self.name)(*full[len(full) - self.graph.placeholders :])
        for report in reporter.reports():
            log.warning("%s", report.text())
        return result


class _NetworkFallback:
    """Runs a graph in PyTorch with the inputs that a network takes, joined with its weights."""

    def __init__(self, graph: Fallback, holder: WeightHolder) -> None:
        self.graph, self._holder = graph, holder

    def __call__(self, *inputs: Any) -> Any:
        return self.graph(*self._holder.join(inputs))


def _retire(made: Sequence[tuple[Engine, str]]) -> None:
    """Release the networks of a graph that Dynamo has dropped: before torch 2.5 such a graph holds its weights."""
    for engine, name in made:
        engine.retire(name)


def _changes(network: Network) -> int:
    """How often a graph was compiled again because its weights had changed."""
    return network.statistics.compiles - max(1, len(network.seen))
