"""One OpenVINO graph with dynamic dimensions for a Dynamo graph with symbolic sizes.

Dynamo passes sizes as integer arguments beside the tensors. Here they are read from the tensors' shapes, so that the converted
graph computes them itself. A graph for which that is impossible is refused with a reason, and gets static graphs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.fx import GraphModule

from ov_backend.capture import symbolic_trace
from ov_backend.capture.forward import Reach, in_place_of
from ov_backend.capture.symbolic_trace import SymbolicTrace
from ov_backend.capture.trace import Captured, unlifted_constants
from ov_backend.compiler import first_decompositions
from ov_backend.dynamo.graph import DynamoGraph, WeightHolder
from ov_backend.engine.engine import Network, NetworkHooks
from ov_backend.errors import CaptureError, OVBackendError
from ov_backend.guards.pytree import flatten
from ov_backend.guards.signature import Call, Signature
from ov_backend.partitioning import dynamic_shapes
from ov_backend.settings import Settings

#: The most OpenVINO graphs for one Dynamo graph; each is valid under conditions on the sizes.
_MAX_VARIANTS = 4
#: After more compiles than this for changed weights, the weights become inputs; only static graphs support that.
MAX_WEIGHT_CHANGES = 3
_NO_DYNAMIC_SIZE = "no size is dynamic"


class DynamicGraph:
    """The graphs with dynamic dimensions of one Dynamo graph.

    Args:
        graph: Dynamo's graph.
        name: its name in statistics.
        settings: those that affect the graph.
        add: creates a network of the engine from a name, a module and hooks.

    Attributes:
        refusal: why static graphs answer instead, or "".
    """

    def __init__(
        self, graph: DynamoGraph, name: str, settings: Settings, add: Callable[[str, WeightHolder, NetworkHooks], Network]
    ) -> None:
        self._graph, self._name, self._settings, self._add = graph, name, settings, add
        self._variants: list[_Variant] = []
        self.refusal = "" if any(map(_is_dynamic, graph.shapes)) else _NO_DYNAMIC_SIZE

    @property
    def requested(self) -> bool:
        """Whether Dynamo marked any size as dynamic."""
        return self.refusal != _NO_DYNAMIC_SIZE

    def __call__(self, full: Sequence[Any]) -> Any:
        """Answer one call, or return ``NotImplemented``; then ``refusal`` is the reason."""
        variant = self._variant(full)
        if variant is None:
            return NotImplemented
        with torch.no_grad():
            return variant.with_numbers(variant.holder.answer(variant.network, full), full)

    def _variant(self, full: Sequence[Any]) -> _Variant | None:
        if self.refusal:
            return None
        for variant in self._variants:
            if variant.serves(full):
                if variant.network.statistics.compiles > MAX_WEIGHT_CHANGES:
                    self.refusal = "its weights keep changing"
                    return None
                return variant
        if len(self._variants) == _MAX_VARIANTS:
            self.refusal = f"{_MAX_VARIANTS} graphs do not serve all of its sizes"
            return None
        try:
            variant = self._compile(full)
        except OVBackendError as error:
            self.refusal = str(error)
            return None
        self._variants.append(variant)
        return variant

    def _compile(self, full: Sequence[Any]) -> _Variant:
        holder = SizedWeightHolder(self._graph, full)
        number = f" #{len(self._variants) + 1}" if self._variants else ""
        variant = _Variant(holder, self._settings)
        hooks = NetworkHooks(capture=variant.capture, generalize=variant.generalize)
        variant.network = self._add(f"{self._name} dynamic{number}", holder, hooks)
        with torch.no_grad():
            variant.network.prepare(*holder.hold(full))
        if variant.traced is None:
            raise CaptureError("it computes nothing")
        return variant


def _is_dynamic(shape: Any) -> bool:
    return isinstance(shape, tuple) and any(not isinstance(size, int) for size in shape)


class SizedWeightHolder(WeightHolder):
    """As :class:`WeightHolder`, but takes tensors only: sizes are read from the tensors, other values are fixed.

    Attributes:
        tensors: indices of the arguments that its forward takes.
        fixed: values of the arguments that are neither tensors nor sizes of tensors, by the argument's index.
    """

    def __init__(self, graph: DynamoGraph, full: Sequence[Any]) -> None:
        super().__init__(graph, graph.weights(full), len(full))
        self.graph, self.places = graph, graph.places()
        self._sizes: dict[int, tuple[int, int]] = {}
        self.fixed: dict[int, Any] = {}
        for i, shape in enumerate(graph.shapes):
            if isinstance(full[i], torch.Tensor):
                continue
            if shape in self.places:
                self._sizes[i] = self.places[shape]
            else:
                self.fixed[i] = full[i]
        self.tensors = [i for i, value in enumerate(full) if isinstance(value, torch.Tensor) and i not in self._weights]

    def hold(self, full: Sequence[Any]) -> list[Any]:
        """Hold the weights among a call's arguments; returns the other tensors."""
        super().hold(full)
        return [full[i] for i in self.tensors]

    def join(self, inputs: Sequence[Any]) -> list[Any]:
        """All arguments: weights, tensors, fixed values, and the tensors' sizes."""
        arguments: list[Any] = [None] * self._count
        for i, name in self._weights.items():
            arguments[i] = self._buffers[name]
        for i, value in zip(self.tensors, inputs):
            arguments[i] = value
        for i, value in self.fixed.items():
            arguments[i] = value
        for i, (tensor, dim) in self._sizes.items():
            arguments[i] = arguments[tensor].shape[dim]
        return arguments

    def forward(self, *inputs: Any) -> Any:
        """The function's results, with None for each that is no tensor."""
        result = super().forward(*inputs)
        return [value if isinstance(value, torch.Tensor) else None for value in result]


class _Variant:
    """One graph with dynamic dimensions, valid for some sizes."""

    network: Network

    def __init__(self, holder: SizedWeightHolder, settings: Settings) -> None:
        self.holder, self._settings = holder, settings
        self.traced: SymbolicTrace | None = None
        self._limits: tuple[tuple[float, ...], ...] = ()
        shapes = [holder.graph.shapes[i] for i in holder.tensors]
        self._dims = {i: tuple(d for d, size in enumerate(shape) if not isinstance(size, int)) for i, shape in enumerate(shapes)}

    def serves(self, full: Sequence[Any]) -> bool:
        """Whether the graph is valid for a call's sizes."""
        if self.traced is None or any(full[i] != value for i, value in self.holder.fixed.items()):
            return False
        shapes = tuple(tuple(full[i].shape) for i in self.holder.tensors)
        if any(size > limit for shape, limits in zip(shapes, self._limits) for size, limit in zip(shape, limits)):
            return False
        return self.traced.meets_conditions(shapes)

    def generalize(self, call: Call) -> Call:
        """The call with -1 for every dynamic size."""
        specs = [
            dataclasses.replace(spec, shape=tuple(-1 if d in self._dims[i] else s for d, s in enumerate(spec.shape)))
            for i, spec in enumerate(call.signature.tensors)
        ]
        return dataclasses.replace(call, signature=Signature(tuple(specs), call.signature.statics))

    def capture(
        self,
        module: torch.nn.Module,
        forward: Callable[..., Any],
        weights: Mapping[str, torch.Tensor],
        names: Sequence[str],
        tensors: Sequence[torch.Tensor],
        arguments: Callable[[Sequence[torch.Tensor]], tuple[tuple[Any, ...], dict[str, Any]]],
        reach: Reach | None = None,
    ) -> Captured:
        """As :func:`ov_backend.capture.forward.capture`, with symbolic sizes.

        Raises:
            ConversionError: an operator must stay in PyTorch.
        """
        specs: list[Any] = []
        live = list(weights.values())

        def run(slots: list[torch.Tensor], inputs: list[torch.Tensor]) -> list[torch.Tensor]:
            args, kwargs = arguments(inputs)
            with in_place_of(module, live, slots, reach):
                leaves, spec = flatten(forward(*args, **kwargs))
            specs.append(spec)
            return [tensor for _, tensor in leaves]

        def retrace(table: Mapping[Any, Any]) -> GraphModule:
            traced = symbolic_trace.trace(run, live, tensors, self._dims, table)
            factor = dynamic_shapes.check(traced.gm, traced.sizes, self._settings)
            self._limits = tuple(tuple(max(1, size) * factor for size in tensor.shape) for tensor in tensors)
            symbolic_trace.spell_sizes_for_the_converter(traced.gm)
            self.traced = traced
            return traced.gm

        gm = retrace(first_decompositions(self._settings))
        return Captured(gm, tuple(weights), tuple(names), specs[-1], unlifted_constants(gm), retrace)

    def with_numbers(self, result: Any, full: Sequence[Any]) -> Any:
        """A call's results, with the numbers among them computed from the sizes."""
        values = {symbol: int(full[i].shape[d]) for symbol, (i, d) in self.holder.places.items()}
        numbers = self.holder.graph.returned
        return [value if i not in numbers else _number(numbers[i], values) for i, value in enumerate(result)]


def _number(expression: Any, values: Mapping[Any, int]) -> Any:
    return expression if isinstance(expression, (int, float)) else int(expression.subs(dict(values)))
