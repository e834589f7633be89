"""Trace with symbolic sizes: one ATen graph for a range of shapes, and the conditions under which it is right.

The sizes are symbols of an environment of the trace's own, never Dynamo's. Whatever the traced Python or an operator's rules
decide by a size becomes a condition; a call that does not meet all of them is not served by the graph.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._dispatch.python import enable_python_dispatcher
from torch._dynamo.source import ConstantSource
from torch._guards import tracing
from torch._subclasses import FakeTensorMode
from torch.func import functionalize
from torch.fx import GraphModule, Node
from torch.fx.experimental import symbolic_shapes
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv
from torch.utils._python_dispatch import TorchDispatchMode

from ov_backend.partitioning import int64_range as integers
from ov_backend.partitioning import partitioner as partition
from ov_backend.capture.trace import TRACING
from ov_backend.errors import CaptureError, ConversionError
from ov_backend.lowering.functionalize import mutates, remove_writes
from ov_backend.capture.opaque_attention import WholeAttention, write_attention
from ov_backend.settings import Settings, operator_name

_aten = torch.ops.aten

#: Where int64 values grow with the sizes, these may grow by the first factor with which such values still fit 32 bits.
_FACTORS = (64, 8)


@dataclass(frozen=True)
class Symbolic:
    """One trace.

    Attributes:
        gm: ATen graph; its placeholders are the slots, then the inputs; sizes are computed in it.
        serves: whether it is right for inputs of these shapes.
    """

    gm: GraphModule
    serves: Callable[[tuple[tuple[int, ...], ...]], bool]


def trace(
    function: Callable[..., Any],
    slots: Sequence[torch.Tensor],
    inputs: Sequence[torch.Tensor],
    dims: Mapping[int, tuple[int, ...]],
    decompositions: Mapping[Any, Any],
    settings: Settings,
) -> Symbolic:
    """Trace ``function(slots, inputs)`` with symbols for some sizes.

    Args:
        function: what to trace.
        slots: weights; their sizes are fixed.
        inputs: one call's tensors; only shape and dtype are used.
        dims: which dimensions of which inputs are symbols.
        decompositions: operators that are taken apart.
        settings: which operators may not run in OpenVINO.

    Raises:
        CaptureError: Python code depends on values, or sizes are 0 or 1.
        ConversionError: an operator has to stay in PyTorch.
    """
    gm, env, fakes = _traced(function, slots, inputs, dims, decompositions)
    if any(mutates(node) for node in gm.graph.nodes):
        gm, env, fakes = _traced(functionalize(function, remove="mutations"), slots, inputs, dims, decompositions)
    for node in gm.graph.nodes:
        if mutates(node):
            raise CaptureError(f"it writes to its inputs or weights ({node.target})")
    gm = write_attention(gm)
    sizes = {fakes[i].shape[d].node.expr: int(inputs[i].shape[d]) for i in dims for d in dims[i]}
    factor = _check(gm, sizes, settings)
    limits = tuple(tuple(max(1, size) * factor for size in tensor.shape) for tensor in inputs)
    _as_the_converter_knows(gm)

    @functools.lru_cache(maxsize=4096)
    def serves(shapes: tuple[tuple[int, ...], ...]) -> bool:
        if any(size > limit for shape, most in zip(shapes, limits) for size, limit in zip(shape, most)):
            return False
        metas = [torch.empty(shape, dtype=fake.dtype, device="meta") for shape, fake in zip(shapes, fakes)]
        return bool(env.evaluate_guards_for_args(fakes, metas))

    return Symbolic(gm, serves)


def _traced(
    function: Callable[..., Any],
    slots: Sequence[torch.Tensor],
    inputs: Sequence[torch.Tensor],
    dims: Mapping[int, tuple[int, ...]],
    table: Mapping[Any, Any],
) -> tuple[GraphModule, ShapeEnv, list[Any]]:
    with torch.inference_mode(False):
        slots, inputs = list(map(_plain, slots)), list(map(_plain, inputs))
    env = ShapeEnv(duck_shape=False)
    mode = FakeTensorMode(allow_non_fake_inputs=True, shape_env=env)
    try:
        with TRACING, tracing(None), torch.inference_mode(False), torch.no_grad(), mode, _Unconditional(env):
            weights = [mode.from_tensor(slot, static_shapes=True) for slot in slots]
            fakes = [_symbols(mode, tensor, dims[i], f"input_{i}") for i, tensor in enumerate(inputs)]
            with enable_python_dispatcher(), WholeAttention():
                gm = remove_writes(make_fx(function, decomposition_table=dict(table))(weights, list(fakes)))
    except CaptureError:
        raise
    except Exception as error:  # whatever a module's own Python raises under trace: it cannot be captured
        lines = [line.strip() for line in str(error).splitlines() if line.strip()] or ["no message"]
        raise CaptureError(f"it cannot be traced with symbolic sizes: {type(error).__name__}: {lines[0]}") from error
    return gm, env, fakes


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    """Shape and dtype of a tensor, as an ordinary contiguous one, which is what a compiled graph takes; nothing is read."""
    return torch.empty(tensor.shape, dtype=tensor.dtype)


def _symbols(mode: FakeTensorMode, tensor: torch.Tensor, dims: Sequence[int], name: str) -> Any:
    kinds = [DimDynamic.DYNAMIC if d in dims else DimDynamic.STATIC for d in range(tensor.dim())]
    context = getattr(symbolic_shapes, "StatelessSymbolicContext", None)  # since torch 2.2
    how = {"dynamic_dims": kinds} if context is None else {"symbolic_context": context(dynamic_sizes=kinds)}
    fake = mode.from_tensor(tensor, source=ConstantSource(name), **how)
    if any(not isinstance(fake.shape[d], torch.SymInt) for d in dims):
        raise CaptureError("a size is 0 or 1, for which PyTorch's rules are others than for all other sizes")
    return fake


class _Unconditional(TorchDispatchMode):
    """Keeps out the conditions that PyTorch makes only to choose a convolution's kernel."""

    def __init__(self, env: ShapeEnv) -> None:
        super().__init__()
        self._env = env

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is not _aten.convolution.default:
            return func(*args, **(kwargs or {}))
        with self._env.suppress_guards():
            return func(*args, **(kwargs or {}))


def _check(gm: GraphModule, sizes: Mapping[Any, int], settings: Settings) -> float:
    """By what factor the sizes may grow.

    Raises:
        ConversionError: an operator must stay in PyTorch whatever the sizes.
    """
    reasons: dict[Node, str] = dict.fromkeys(partition.handed_out(gm), partition.VIEW)
    now = _concrete(gm, sizes)
    for node in partition.operators(now):
        why = partition.reason(node, settings) if _computes_tensors(node) else ""
        reasons.update({node: why} if why else {})
    large = {} if settings.truncate_long_and_double else integers.too_large(now, settings.wide_integers)
    for node, why in {**reasons, **large}.items():
        raise ConversionError(f"{operator_name(node.target)} {why}")
    for factor in _FACTORS:
        then = _concrete(gm, {symbol: size * factor for symbol, size in sizes.items()})
        if integers.largest(then, settings.wide_integers) == integers.largest(now, settings.wide_integers):
            return math.inf
        if settings.truncate_long_and_double or not integers.too_large(then, settings.wide_integers):
            return factor
    return 1


def _computes_tensors(node: Node) -> bool:
    return isinstance(node.meta.get("val"), (torch.Tensor, tuple, list))


def _concrete(gm: GraphModule, sizes: Mapping[Any, int]) -> GraphModule:
    """A copy in which every value has the sizes it gets from these."""
    graph = torch.fx.Graph()
    graph.output(graph.graph_copy(gm.graph, {}))
    for old, new in zip(gm.graph.nodes, graph.nodes):
        new.meta = dict(old.meta)
        if "val" in old.meta:
            new.meta["val"] = _value(old.meta["val"], sizes)
    return GraphModule(gm, graph)


def _value(value: Any, sizes: Mapping[Any, int]) -> Any:
    if isinstance(value, (tuple, list)):
        return type(value)(_value(item, sizes) for item in value)
    if isinstance(value, torch.Tensor):
        return torch.empty((), dtype=value.dtype, device="meta").expand([_value(size, sizes) for size in value.shape])
    if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        found = value.node.expr.subs(dict(sizes))
        return int(found) if isinstance(value, torch.SymInt) else float(found)
    return value


def _as_the_converter_knows(gm: GraphModule) -> None:
    """Spell sizes and what is computed of them as the converter does."""
    for node in list(gm.graph.nodes):
        with gm.graph.inserting_before(node):
            if node.target is getattr(torch, "sym_sum", None):  # since torch 2.6
                node.replace_all_uses_with(_chain(gm, operator.add, list(node.args[0])))
            elif node.op == "call_function" and str(node.target).startswith("aten.sym_numel"):
                dims = range(node.args[0].meta["val"].dim())
                sizes = [gm.graph.call_function(_aten.sym_size.int, (node.args[0], d)) for d in dims]
                node.replace_all_uses_with(_chain(gm, operator.mul, sizes or [1]))
            elif node.target is torch.sym_float:
                node.target, node.args = _aten.mul.Tensor, (node.args[0], 1.0)
            elif node.target is operator.truediv:
                node.target = _aten.div.Tensor
            elif node.op == "call_function" and str(node.target) in ("aten.sym_size", "aten.sym_size.default"):
                node.target = _aten.sym_size.int
    gm.graph.eliminate_dead_code()
    gm.recompile()


def _chain(gm: GraphModule, function: Callable[..., Any], values: Sequence[Any]) -> Any:
    """``function`` of the first two values, of that and the third, and so on."""
    result, *rest = values
    for value in rest:
        result = gm.graph.call_function(function, (result, value))
    return result
