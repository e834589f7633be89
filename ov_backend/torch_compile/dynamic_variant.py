"""One OpenVINO graph with dynamic dimensions: traced with symbols for sizes, valid for the sizes that meet its conditions."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.fx import GraphModule

from ov_backend.core.errors import CaptureError, OVBackendError, first_line, pass_on_signals
from ov_backend.core.fx_utils import number
from ov_backend.core.settings import Settings
from ov_backend.core.tensors import TensorSpec, with_strides
from ov_backend.engine.engine import Network
from ov_backend.guards.pytree import Spec, flatten, restore
from ov_backend.guards.signature import Call, Signature
from ov_backend.model.compiler import first_decompositions
from ov_backend.torch_compile.graph import DynamoGraph, WeightHolder
from ov_backend.trace.capture import size_numbers, symbolic_trace
from ov_backend.trace.capture.forward import Reach, in_place_of
from ov_backend.trace.capture.symbolic_trace import SymbolicTrace
from ov_backend.trace.capture.trace import Captured
from ov_backend.trace.partitioning import dynamic_shapes

#: Of tensors; of a float it is its value.
_Shapes = tuple[tuple[float, ...], ...]

_INT32_MAX = (1 << 31) - 1
#: For how many shapes the numbers are remembered.
_REMEMBERED = 4096
#: What Python and sympy raise where an expression has no value.
_ARITHMETIC = (ArithmeticError, AssertionError, AttributeError, LookupError, NotImplementedError, TypeError, ValueError)


class SizedWeightHolder(WeightHolder):
    """As :class:`WeightHolder`, but takes tensors only: sizes are read from the tensors, other values are fixed.

    A whole number for which Dynamo has a symbol is passed as the length of a tensor without memory, so that it has one here,
    and a float as a tensor of one element.

    Attributes:
        tensors: indices of the arguments that its forward takes.
        floats: indices of those that it takes as a tensor of one element.
        lengths: indices of those that it takes as the length of a tensor.
        fixed: values of all other arguments, by the argument's index; they are no sizes of tensors either.
        places: where each of Dynamo's symbols can be read: index of the argument, and dimension (None: it is the argument).
    """

    def __init__(self, graph: DynamoGraph, full: Sequence[Any]) -> None:
        super().__init__(graph, graph.weights(full), len(full))
        self.graph, self.places = graph, dict[Any, tuple[int, int | None]](graph.places())
        self._sizes: dict[int, tuple[int, int | None]] = {}
        self.floats: list[int] = []
        self.lengths: list[int] = []
        self.fixed: dict[int, Any] = {}
        for i, shape in enumerate(graph.shapes):
            if isinstance(full[i], torch.Tensor):
                continue
            if shape in self.places:
                self._sizes[i] = self.places[shape]
            elif getattr(shape, "is_symbol", False) and (isinstance(full[i], float) or full[i] > 1):
                (self.floats if isinstance(full[i], float) else self.lengths).append(i)
                self.places[shape] = i, None
            else:
                self.fixed[i] = full[i]
        self.tensors = [i for i, value in enumerate(full) if isinstance(value, torch.Tensor) and i not in self._weights]

    def hold(self, full: Sequence[Any]) -> list[Any]:
        """Hold the weights among a call's arguments; returns the other tensors."""
        super().hold(full)
        floats = [torch.tensor(full[i], dtype=torch.float64) for i in self.floats]
        return [*(full[i] for i in self.tensors), *floats, *(torch.empty(()).expand(full[i]) for i in self.lengths)]

    def join(self, inputs: Sequence[Any]) -> list[Any]:
        """All arguments: weights, tensors, fixed values, and the tensors' sizes."""
        arguments: list[Any] = [None] * self._count
        for i, name in self._weights.items():
            arguments[i] = self._buffers[name]
        for i, value in zip([*self.tensors, *self.floats, *self.lengths], inputs):
            arguments[i] = value.shape[0] if i in self.lengths else value
            if i in self.floats and isinstance(value, torch.Tensor):
                arguments[i] = value.item()
        for i, value in self.fixed.items():
            arguments[i] = value
        for i, (argument, dim) in self._sizes.items():
            arguments[i] = arguments[argument] if dim is None else arguments[argument].shape[dim]
        return arguments

    def forward(self, *inputs: Any) -> Any:
        """The function's results, with None for each that is no tensor."""
        result = super().forward(*inputs)
        return [value if isinstance(value, torch.Tensor) else None for value in result]

    def sizes(self, full: Sequence[Any]) -> dict[Any, float]:
        """What Dynamo's symbols are in a call."""
        return {symbol: full[i] if d is None else int(full[i].shape[d]) for symbol, (i, d) in self.places.items()}


class Variant:
    """One graph with dynamic dimensions, valid for some sizes: its network, and what holds the weights and takes calls apart.

    ``numbers`` is what Python computes at each call from the sizes, for the graph to read.
    """

    network: Network

    def __init__(self, holder: SizedWeightHolder, settings: Settings, full: Sequence[Any]) -> None:
        self.holder, self._settings = holder, settings
        self.numbers: size_numbers.Numbers = {}
        self._given = *(full[i] for i in holder.floats), *(torch.empty(()).expand(full[i]) for i in holder.lengths)
        self._example = tuple(holder.sizes(full).values())
        self._traced: SymbolicTrace | None = None
        self._ready: tuple[GraphModule, Any] | None = None
        self._results: Spec = {}
        self._limits: tuple[tuple[float, ...], ...] = ()
        shapes = [holder.graph.shapes[i] for i in holder.tensors]
        self._dims = {i: tuple(d for d, size in enumerate(shape) if not isinstance(size, int)) for i, shape in enumerate(shapes)}
        self._dims |= {len(shapes) + i: (0,) for i in range(len(holder.floats) + len(holder.lengths))}
        self._values: Callable[[_Shapes], tuple[float | bool, ...]] = lambda shapes: ()

    def prepare(self, full: Sequence[Any]) -> None:
        """Trace and compile for a call. Raises OVBackendError if static graphs have to answer."""
        with torch.no_grad():
            while True:
                known = len(self.numbers)
                try:
                    self.network.prepare(*self.holder.hold(full))
                    break
                except OVBackendError:
                    if len(self.numbers) == known:
                        raise
        if self._traced is None:
            raise CaptureError("it computes nothing")

    def serves(self, full: Sequence[Any]) -> bool:
        """Whether the graph is valid for a call's sizes."""
        if self._traced is None or any(full[i] != value for i, value in self.holder.fixed.items()):
            return False
        try:
            shapes = self._shapes(full)
            if not self._serves(shapes):
                return False
            self._returned(tuple(self.holder.sizes(full).values()))  # what answer needs can be computed
            self._traced.strides(shapes)
            return True
        except _ARITHMETIC as error:  # a condition or a number is beyond what can be computed
            pass_on_signals(error)
            return False

    def _shapes(self, full: Sequence[Any]) -> _Shapes:
        numbers = [*self.holder.floats, *self.holder.lengths]
        return *(tuple(full[i].shape) for i in self.holder.tensors), *((full[i],) for i in numbers)

    def _serves(self, shapes: _Shapes) -> bool:
        assert self._traced is not None
        if any(abs(size) > limit for shape, limits in zip(shapes, self._limits) for size, limit in zip(shape, limits)):
            return False
        lengths = shapes[len(self.holder.tensors) + len(self.holder.floats) :]
        if any(length < 2 for (length,) in lengths) or not self._traced.meets_conditions(shapes):
            return False
        return all(abs(value) <= _INT32_MAX for value in self._values(shapes) if isinstance(value, int))

    def generalize(self, call: Call) -> Call:
        """The call with -1 for every dynamic size, and with the numbers that the graph reads."""
        count = len(self.holder.tensors)
        specs = [
            dataclasses.replace(spec, shape=tuple(-1 if d in self._dims[i] else s for d, s in enumerate(spec.shape)))
            for i, spec in enumerate(call.signature.tensors[:count])
        ]
        floats = range(count, count + len(self.holder.floats))
        shapes = tuple((each.item(),) if i in floats else tuple(each.shape) for i, each in enumerate(call.tensors))
        values = self._values(shapes)
        dtypes = map(size_numbers.dtype_of, self.numbers.values())
        numbers = [torch.tensor(value, dtype=dtype) for value, dtype in zip(values, dtypes)]
        specs += [TensorSpec.of(f"number_{i}", each) for i, each in enumerate(numbers)]
        signature = Signature(tuple(specs), call.signature.statics)
        return dataclasses.replace(call, signature=signature, tensors=(*call.tensors[:count], *numbers))

    def _returned(self, sizes: tuple[float, ...]) -> dict[int, Any]:
        """The results that are numbers, by their indices; ``sizes`` are what Dynamo's symbols are in the call."""
        symbols = {self.holder.graph.shapes[i]: value for i, value in self.holder.fixed.items()}
        symbols.update(zip(self.holder.places, sizes))
        return {i: number(value, symbols) for i, value in self.holder.graph.returned.items()}

    def answer(self, full: Sequence[Any]) -> Any:
        """Answer a call that the graph serves."""
        numbers = self._returned(tuple(self.holder.sizes(full).values()))
        with torch.no_grad():
            result = self.holder.answer(self.network, full)
        assert self._traced is not None
        strides, given = restore(self._results, self._traced.strides(self._shapes(full))), set(map(id, full))
        return [
            numbers[i] if i in numbers else value if id(value) in given else with_strides(value, strides[i])
            for i, value in enumerate(result)
        ]

    def capture(self, *args: Any, **kwargs: Any) -> Captured:
        """As :func:`ov_backend.trace.capture.forward.capture`, with symbolic sizes; runs in the worker's thread.

        Raises:
            CaptureError: whatever fails on the way; the user's own errors come from PyTorch, which runs the graph then.
            ConversionError: an operator must stay in PyTorch.
        """
        try:
            self._returned(self._example)
            return self._capture(*args, **kwargs)
        except OVBackendError:
            raise
        except Exception as error:
            pass_on_signals(error)
            text = f"{type(error).__name__}: {first_line(error)}"
            raise CaptureError(f"it cannot be traced with symbolic sizes: {text}") from error

    def _capture(
        self,
        module: torch.nn.Module,
        forward: Callable[..., Any],
        weights: Mapping[str, torch.Tensor],
        names: Sequence[str],
        tensors: Sequence[torch.Tensor],
        arguments: Callable[[Sequence[torch.Tensor]], tuple[tuple[Any, ...], dict[str, Any]]],
        reach: Reach | None = None,
    ) -> Captured:
        specs: list[Any] = []
        live = list(weights.values())
        given = [*tensors[: len(self.holder.tensors)], *self._given]

        def run(slots: list[torch.Tensor], inputs: list[torch.Tensor]) -> list[torch.Tensor]:
            args, kwargs = arguments(inputs)
            with in_place_of(module, live, slots, reach):
                leaves, spec = flatten(forward(*args, **kwargs))
            specs.append(spec)
            return [tensor for _, tensor in leaves]

        def retrace(table: Mapping[Any, Any]) -> GraphModule:
            known = len(self.numbers)
            gm = self._accept(symbolic_trace.trace(run, live, given, self._dims, table), given)
            if len(self.numbers) > known:  # the call has to pass them
                self._ready = gm, specs[-1]
                raise CaptureError("it reads numbers that are computed from its sizes")
            return gm

        gm, spec = self._ready or (retrace(first_decompositions(self._settings)), specs[-1])
        self._ready, self._results = None, spec
        return Captured(gm, tuple(weights), tuple(names), spec, retrace)

    def _accept(self, traced: SymbolicTrace, inputs: Sequence[torch.Tensor | float]) -> GraphModule:
        """Check a trace, and make it the graph that answers."""
        factor = dynamic_shapes.check(traced.gm, traced.sizes, self._settings)
        shapes = tuple(tuple(each.shape) if isinstance(each, torch.Tensor) else (each,) for each in inputs)
        self._limits = tuple(tuple(max(1, abs(size)) * factor for size in shape) for shape in shapes)
        size_numbers.take_as_inputs(traced.gm, self.numbers, len(self.holder.lengths))
        symbolic_trace.spell_sizes_for_the_converter(traced.gm)
        self._traced = traced
        self._values = functools.partial(_values, traced, tuple(self.numbers.values()))
        if not self.holder.floats:  # which hardly come back, and of which -0.0 is equal to 0.0
            self._values = functools.lru_cache(_REMEMBERED)(self._values)
        if not self._serves(shapes):
            raise CaptureError("a number that is computed from its sizes is beyond 32 bits")
        return traced.gm


def _values(traced: SymbolicTrace, numbers: Sequence[Any], shapes: _Shapes) -> tuple[float | bool, ...]:
    """The numbers that a graph reads in a call with inputs of these shapes."""
    sizes = {symbol: shapes[i][d] for symbol, (i, d) in traced.places.items()}
    return tuple(number(each, sizes) for each in numbers)
