"""Runs graphs that write to their inputs, return views, or need gradients, with the help of AOTAutograd.

AOTAutograd turns such a graph into a purely functional one (a forward and a backward graph, if gradients are needed), and
applies the writes, views and gradients around it. The functional graphs are compiled like all others.
"""

from __future__ import annotations

import contextlib
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from typing import Any

import torch
from torch._guards import tracing
from torch.fx import GraphModule

from ov_backend.core.autocast_regions import traced_again
from ov_backend.core.errors import CaptureError, pass_on_signals
from ov_backend.core.tracing_flag import flag_of_this_thread
from ov_backend.engine.engine import Network
from ov_backend.engine.number_arguments import admit_statics
from ov_backend.torch_compile.graph import DynamoGraph, WeightHolder
from ov_backend.torch_compile.side_effects import SideEffects
from ov_backend.trace.capture.trace import why_untraceable
from ov_backend.trace.lowering.training_decompositions import training_decompositions


class AotGraph:
    """One Dynamo graph, traced by AOTAutograd once for every combination of shapes, strides and aliasing.

    ``network`` creates a network of the engine for a graph from AOTAutograd. By the graph's ``effects``, inputs that it writes to
    cannot be constants, and where an output is a view of an input, the place of the input in its memory is a part of the trace.
    """

    def __init__(
        self, graph: DynamoGraph, name: str, network: Callable[[str, WeightHolder], Network], effects: SideEffects
    ) -> None:
        self._graph, self.name, self.network = graph, name, network
        self._written, self._aliases = set(effects.written), effects.aliases
        self._functions: dict[Hashable, Callable[..., Any]] = {}
        #: By the properties of a call's tensors, the numbers beside them that were traced.
        self._numbers: defaultdict[Hashable, set[Hashable]] = defaultdict(set)
        self._constant: set[tuple[int, int]] = set()

    def __call__(self, full: Sequence[Any]) -> Any:
        """Run on all inputs of the graph.

        Raises:
            CaptureError: AOTAutograd cannot trace it.
            OVBackendError: its numbers change too often.
        """
        key = _key(full, self._aliases, self._written)
        if key not in self._functions:
            with flag_of_this_thread(), _steps_of_recurrent_layers(self._graph):
                if key not in self._functions:
                    self._admit(key)
                    return self._first(key, full)
        return self._functions[key](*full)

    def _admit(self, key: Sequence[Any]) -> None:
        """Take note of a combination that needs a graph for its numbers; a learning rate may be another at every call."""
        numbers = self._numbers[tuple(each for each in key if isinstance(each, tuple))]
        admit_statics(numbers, tuple(each for each in key if not isinstance(each, tuple)))

    def _first(self, key: Hashable, full: Sequence[Any]) -> Any:
        """The first call with a combination of inputs, in which AOTAutograd traces."""
        weights = [full[i] for i in self._graph.weights(full) if i not in self._written]
        self._constant = {_memory_of(weight) for weight in weights}
        function = self._trace(len(self._functions))
        try:
            result = function(*full)
        except CaptureError:
            self._functions[key] = function  # which raises it again
            raise
        self._functions[key] = function
        return result

    def _trace(self, number: int) -> Callable[..., Any]:
        """A function that AOTAutograd traces at its first call, with the ``number``-th combination of inputs."""
        return _TracedFunction(self, self._graph.traced, f"{self.name} {{}} #{number + 1}" if number else f"{self.name} {{}}")

    def is_constant(self, value: Any) -> bool:
        """Whether a tensor is a weight of the current call."""
        return isinstance(value, torch.Tensor) and _memory_of(value) in self._constant


class _TracedFunction:
    """A graph with one combination of inputs; AOTAutograd traces it at the first call. ``name`` takes the kind of its graphs."""

    def __init__(self, owner: AotGraph, function: Callable[..., Any], name: str) -> None:
        from functorch.compile import aot_function, min_cut_rematerialization_partition

        self._owner, self._name = owner, name
        self._traced, self._refusal = False, ""
        self._compiled = aot_function(
            function,
            fw_compiler=self._compiler("forward", constants=False),
            bw_compiler=self._compiler("backward", constants=False),
            inference_compiler=self._compiler("inference", constants=True),
            partition_fn=min_cut_rematerialization_partition,
            decompositions=training_decompositions(),
        )

    def __call__(self, *args: Any) -> Any:
        """Trace it, if that was not done yet, and run it.

        Raises:
            CaptureError: it cannot be traced. Its backward may not be, although its forward can.
        """
        if self._refusal:
            raise CaptureError(self._refusal)
        try:
            with tracing(None):
                return self._compiled(*args)
        except RuntimeError as error:
            pass_on_signals(error)
            if self._traced:
                raise
            self._refusal = why_untraceable(error)
            raise CaptureError(self._refusal) from error

    def _compiler(self, kind: str, constants: bool) -> Callable[[GraphModule, Sequence[Any]], Callable[..., Any]]:
        @torch.compiler.disable  # as in RecomputeBackward
        def compiler(gm: GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
            from functorch.compile import make_boxed_func

            self._traced = True
            return make_boxed_func(_FunctionalGraph(self._owner, self._name.format(kind), gm, constants))

        return compiler


@contextlib.contextmanager
def _steps_of_recurrent_layers(graph: DynamoGraph) -> Iterator[None]:
    """In this block PyTorch writes out the steps of a graph's LSTMs; with gradients AOTAutograd cannot keep its one operator."""
    enabled = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(enabled and not any(node.target is torch.lstm for node in graph.gm.graph.nodes))
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(enabled)


class _FunctionalGraph:
    """One graph from AOTAutograd; the first call shows which of its inputs are weights."""

    def __init__(self, owner: AotGraph, name: str, gm: GraphModule, constants: bool) -> None:
        self._owner, self._name, self._gm, self._constants = owner, name, gm, constants
        self._network: Network | None = None
        self._lock = threading.Lock()

    @torch.compiler.disable  # as in RecomputeBackward
    def __call__(self, *args: Any) -> Any:
        with self._lock:
            network = self._network or self._add(args)
        full = [arg if i in self._weights or not isinstance(arg, torch.Tensor) else arg.detach() for i, arg in enumerate(args)]
        with torch.no_grad():
            return self._holder.answer(network, full)

    def _add(self, args: Sequence[Any]) -> Network:
        self._weights = {i for i, arg in enumerate(args) if self._constants and self._owner.is_constant(arg)}
        self._holder = WeightHolder(traced_again(self._gm), sorted(self._weights), len(args))
        self._network = self._owner.network(self._name, self._holder)
        return self._network


def _memory_of(tensor: torch.Tensor) -> tuple[int, int]:
    return (tensor.data_ptr(), tensor.numel())


def _key(full: Sequence[Any], aliases: bool, written: Collection[int]) -> tuple[Any, ...]:
    """The properties that AOTAutograd's graph depends on: metadata, gradients, and which inputs share memory.

    Where in its memory an input begins counts only where views are made anew: minibatches are slices of one tensor.
    """
    storages: dict[int, int] = {}
    memories = Counter(value.untyped_storage().data_ptr() for value in full if _has_memory(value))
    key: list[Any] = [torch.is_grad_enabled()]
    for i, value in enumerate(full):
        if not isinstance(value, torch.Tensor):
            key.append(value)
            continue
        if value.layout is not torch.strided:
            raise CaptureError(f"an input is a {value.layout} tensor, which OpenVINO does not have")
        shared = storages.setdefault(value.untyped_storage().data_ptr(), len(storages)) if value.numel() else -1
        views = aliases or i in written or (_has_memory(value) and memories[value.untyped_storage().data_ptr()] > 1)
        offset = value.storage_offset() if views else 0
        key.append((value.dtype, tuple(value.shape), value.stride(), offset, value.requires_grad, shared))
    return tuple(key)


def _has_memory(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.layout is torch.strided and value.numel() > 0
