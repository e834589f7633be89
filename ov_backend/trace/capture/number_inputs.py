"""Python numbers among a forward's arguments as inputs of one graph, which is compared with the plain graphs of two calls."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import CodeType
from typing import Any

import torch
from torch.fx import Graph, GraphModule
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.fx.node import map_arg

from ov_backend.core.errors import CaptureError
from ov_backend.core.fx_utils import NUMBERS, graph_text, number, output_node, placeholders
from ov_backend.guards.reads import chains_of
from ov_backend.guards.traced_code import own_code
from ov_backend.trace.capture.forward import Reach
from ov_backend.trace.capture.size_numbers import Numbers, dtype_of, take_as_inputs
from ov_backend.trace.capture.trace import Captured

#: Globals by which code asks for the class of a number: that of a trace has another.
_CLASSES = frozenset({"float", "int", "type", "numbers", "Number", "Real", "Complex", "Integral", "Rational", "builtins"})

#: Numbers by which it shows that an expression was simplified.
_TRIED = {float: (0.1, 3.7), int: (3, -7)}

#: Traces one call with these numbers.
Trace = Callable[[Sequence[Any]], Captured]


class NumberInputs:
    """The numbers of calls that differ in nothing else but their tensors' content, known from two calls.

    :attr:`inputs` is what the graph takes behind the tensors: the numbers, and what Python computes of them.
    """

    def __init__(self, *calls: Sequence[Any]) -> None:
        environment = ShapeEnv()
        self._calls = calls
        makes = {float: environment.create_unbacked_symfloat, int: environment.create_unbacked_symint}
        self._symbols = [makes[type(each)]() for each in calls[0]]
        self.inputs: Numbers = {f"{type(each).__name__} {each.node.expr}": each for each in self._symbols}

    def tensors(self, numbers: Sequence[Any]) -> list[torch.Tensor]:
        """The graph's last inputs in a call; raises what Python does, and where one is infinite: a trace takes x - x for 0."""
        if not all(map(math.isfinite, numbers)):
            raise ArithmeticError("a number is not finite")
        values = {symbol.node.expr: value for symbol, value in zip(self._symbols, numbers)}
        return [torch.tensor(number(each, values), dtype=dtype_of(each)) for each in self.inputs.values()]

    def captured(self, trace: Trace, names: Sequence[str], reach: Reach | None) -> Captured:
        """The graph of all such calls, with inputs of these names; raises where it has more inputs, which are known then."""
        plain = [trace(numbers) for numbers in self._calls]
        captured = trace(self._symbols)
        if reach is not None and _asks_for_classes(reach.executed):
            raise CaptureError("its code asks for the class of a number")
        _check(captured.gm)
        for tried in zip(*(_TRIED[type(each)] for each in self._calls[0])):
            self._try(captured.gm, tried)
        known = len(self.inputs)
        take_as_inputs(captured.gm, self.inputs, 0)
        if len(self.inputs) > known:
            raise CaptureError("it reads numbers that Python computes of its arguments")
        for numbers, expected in zip(self._calls, plain):
            if graph_text(self._with(captured.gm, numbers)) != graph_text(expected.gm) or captured.output != expected.output:
                raise CaptureError("another number makes it compute otherwise")
        return replace(captured, inputs=tuple(names))

    def _try(self, gm: GraphModule, numbers: Sequence[Any]) -> None:
        """Raise if an expression, which sympy may have simplified, is not what Python computes step by step."""
        values = {symbol.node.expr: value for symbol, value in zip(self._symbols, numbers)}
        computed: dict[Any, Any] = {}
        for node in gm.graph.nodes:
            if isinstance(value := node.meta.get("val"), NUMBERS):
                args, kwargs = map_arg((node.args, node.kwargs), computed.__getitem__)
                is_given = node.op == "placeholder"
                try:
                    expected = number(value, values)
                    computed[node] = expected if is_given else node.target(*args, **kwargs)
                except (ArithmeticError, TypeError, ValueError):  # as the forward may raise for such a number
                    return
                if repr(computed[node]) != repr(expected) or not (is_given or node.users):
                    raise CaptureError("it computes with a number what cancels out, and is rounded in Python")

    def _with(self, gm: GraphModule, of_call: Sequence[Any]) -> GraphModule:
        """A graph with numbers in the place of its last inputs."""
        values = {symbol.node.expr: value for symbol, value in zip(self._symbols, of_call)}
        numbers = [number(each, values) for each in self.inputs.values()]
        replaced: dict[Any, Any] = dict(zip(placeholders(gm)[-len(numbers) :], numbers))
        kept = [node for node in gm.graph.nodes if node not in replaced]
        graph = Graph()
        graph.output(graph.graph_copy(gm.graph, replaced))
        for old, new in zip(kept, graph.nodes):
            new.meta = dict(old.meta)
        return GraphModule(gm, graph)


def _asks_for_classes(executed: dict[CodeType, str]) -> bool:
    """Whether code may tell a number from what stands for it in a trace, and decide by that: all else it would do raises."""
    for code, module in own_code(executed).items():
        members = vars(sys.modules[module]) if module in sys.modules else {}
        held = [members.get(chain.root) for chain in chains_of(code)]
        if any(isinstance(value, tuple) and any(map(_is_number, value)) for value in held):
            return True
        if any(chain.root in _CLASSES or "isscalar" in chain.attributes for chain in chains_of(code)):
            return True
    return False


def _is_number(value: Any) -> bool:
    return value is float or value is int


def _check(gm: GraphModule) -> None:
    """Raise for what a float of 32 bits is not enough for, and for numbers among the results and in shapes."""
    values = [node.meta.get("val") for node in gm.graph.nodes if node.op != "output"]
    flat = [each for value in values for each in (value if isinstance(value, (tuple, list)) else (value,))]
    tensors = [each for each in flat if isinstance(each, torch.Tensor)]
    if any(each.dtype in (torch.float64, torch.complex128) for each in tensors) or torch.get_default_dtype() != torch.float32:
        raise CaptureError("it computes in float64")
    if any(isinstance(each.meta.get("val"), NUMBERS) for each in output_node(gm).args[0]):
        raise CaptureError("its result is a number")
    if any(not isinstance(size, int) for each in tensors for size in each.shape):
        raise CaptureError("a shape depends on a number")
