"""Trace with symbolic sizes: one ATen graph for a range of shapes, and the conditions under which it is right.

The sizes are symbols of an environment of the trace's own, never Dynamo's. Whatever the traced Python or an operator's rules
decide by a size becomes a condition; a call that does not meet all of them is not served by the graph.
"""

from __future__ import annotations

import functools
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
from torch.fx import GraphModule
from torch.fx.experimental import symbolic_shapes
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv
from torch.utils._python_dispatch import TorchDispatchMode

from ov_backend.core import tracing_lock
from ov_backend.core.errors import CaptureError, first_line, pass_on_signals
from ov_backend.core.fx_utils import number, output_node
from ov_backend.core.tensors import strides_like
from ov_backend.core.tracing_flag import flag_of_this_thread
from ov_backend.trace.capture.opaque_operators import WholeAttention, WholeRecurrences, write_attention
from ov_backend.trace.capture.trace import check_operators, refuse_assertions
from ov_backend.trace.lowering.functionalize import functionalize_intermediates, mutates
from ov_backend.trace.lowering.passes.remove_dead_code import remove_dead_code

_aten = torch.ops.aten
#: What PyTorch's own rules write where a number is a symbol.
_PRIMS = {getattr(torch.ops.prims, name).default: getattr(_aten, name).Tensor for name in ("add", "sub", "mul", "div")}
#: Of each input; of a float it is its value.
Shapes = tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class SymbolicTrace:
    """One trace with symbolic sizes: an ATen graph whose placeholders are the slots, then the inputs; sizes are computed in it.

    ``places`` has for every symbol the input, and the dimension of it, whose size it is; ``sizes`` its size in the traced call.
    ``meets_conditions`` says whether inputs of these shapes take the same way through the traced code, and ``strides`` those of
    each result for them.
    """

    gm: GraphModule
    places: Mapping[Any, tuple[int, int]]
    sizes: Mapping[Any, float]
    meets_conditions: Callable[[Shapes], bool]
    strides: Callable[[Shapes], list[tuple[int, ...]]]


def trace(
    function: Callable[..., Any],
    slots: Sequence[torch.Tensor],
    inputs: Sequence[torch.Tensor | float],
    dims: Mapping[int, tuple[int, ...]],
    decompositions: Mapping[Any, Any],
) -> SymbolicTrace:
    """Trace ``function(slots, inputs)`` with symbols for floats and for some dimensions (``dims``) of some inputs.

    Of the tensors only shape and dtype are used; the sizes of weights are fixed.
    """
    gm, env, fakes = _traced(function, slots, inputs, dims, decompositions)
    if any(mutates(node) for node in gm.graph.nodes):
        gm, env, fakes = _traced(functionalize(function, remove="mutations"), slots, inputs, dims, decompositions)
    for node in gm.graph.nodes:
        node.target = _PRIMS.get(node.target, node.target)
        if mutates(node):
            raise CaptureError(f"it changes a tensor in place ({node.target})")
    check_operators(gm)
    refuse_assertions(gm)
    gm = remove_dead_code(write_attention(gm))
    places = {_shape(fakes[i])[d].node.expr: (i, d) for i in dims for d in dims[i]}
    sizes = {symbol: _shape(inputs[i])[d] for symbol, (i, d) in places.items()}
    guards = _guards(env, fakes)

    @functools.lru_cache(maxsize=4096)
    def meets_conditions(shapes: Shapes) -> bool:
        metas = [
            _meta(tuple(map(int, shape)), given) if isinstance(given, torch.Tensor) else shape[0]
            for shape, given in zip(shapes, inputs)
        ]
        return bool(guards(metas))

    results = [node.meta["val"] for node in output_node(gm).args[0]]

    @functools.lru_cache(maxsize=4096)
    def strides(shapes: Shapes) -> list[tuple[int, ...]]:
        now = {symbol: shapes[i][d] for symbol, (i, d) in places.items()}
        return [tuple(number(stride, now) for stride in result.stride()) for result in results]

    return SymbolicTrace(gm, places, sizes, meets_conditions, strides)


def _meta(shape: tuple[int, ...], like: torch.Tensor) -> torch.Tensor:
    return torch.empty(shape, dtype=like.dtype, device="meta").as_strided(shape, strides_like(shape, like.stride()))


def _guards(env: ShapeEnv, fakes: Sequence[Any]) -> Callable[[Sequence[Any]], Any]:
    """Whether tensors have sizes that take the same way through the traced code; where torch can, written as Python only once."""
    if not hasattr(env, "produce_guards_expression"):  # before torch 2.4
        return lambda metas: env.evaluate_guards_for_args(fakes, metas)
    expression = env.produce_guards_expression(fakes)
    return lambda metas: expression is None or env.evaluate_guards_expression(expression, metas)


def _traced(
    function: Callable[..., Any],
    slots: Sequence[torch.Tensor],
    inputs: Sequence[torch.Tensor | float],
    dims: Mapping[int, tuple[int, ...]],
    table: Mapping[Any, Any],
) -> tuple[GraphModule, ShapeEnv, list[Any]]:
    with torch.inference_mode(False):
        slots, inputs = list(map(_plain, slots)), [_plain(x) if isinstance(x, torch.Tensor) else x for x in inputs]
    env = ShapeEnv(duck_shape=False)
    mode = FakeTensorMode(allow_non_fake_inputs=True, shape_env=env)
    try:
        with tracing_lock.lock(), tracing(None), torch.inference_mode(False), torch.no_grad(), mode, _Unconditional(env):
            weights = [mode.from_tensor(slot, static_shapes=True) for slot in slots]
            fakes = [_symbols(mode, tensor, dims[i], f"input_{i}") for i, tensor in enumerate(inputs)]
            with enable_python_dispatcher(), WholeAttention(), WholeRecurrences(), flag_of_this_thread():
                gm = functionalize_intermediates(make_fx(function, decomposition_table=dict(table))(weights, list(fakes)))
    except CaptureError:
        raise
    except Exception as error:  # whatever a module's own Python raises under trace: it cannot be captured
        pass_on_signals(error)
        raise CaptureError(f"it cannot be traced with symbolic sizes: {type(error).__name__}: {first_line(error)}") from error
    return gm, env, fakes


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    """An ordinary tensor without gaps, of a tensor's shape and dtype and the order of its dimensions; nothing is read."""
    return torch.empty_strided(tensor.shape, strides_like(tensor.shape, tensor.stride()), dtype=tensor.dtype)


def _shape(value: Any) -> Sequence[Any]:
    return value.shape if isinstance(value, torch.Tensor) else (value,)


def _symbols(mode: FakeTensorMode, tensor: torch.Tensor | float, dims: Sequence[int], name: str) -> Any:
    if isinstance(tensor, float):
        symbol = mode.shape_env.create_unspecified_symbol(tensor, ConstantSource(name), DimDynamic.DYNAMIC)
        return mode.shape_env.create_symfloatnode(symbol, hint=tensor, source=ConstantSource(name))
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


def spell_sizes_for_the_converter(gm: GraphModule) -> None:
    """Spell sizes and what is computed of them as the converter does."""
    for node in list(gm.graph.nodes):
        with gm.graph.inserting_before(node):
            if node.target is getattr(torch, "sym_sum", None):  # since torch 2.6
                node.replace_all_uses_with(_chain(gm, operator.add, list(node.args[0])))
            elif node.op == "call_function" and str(node.target).startswith("aten.sym_numel"):
                dims = range(node.args[0].meta["val"].dim())
                sizes = [gm.graph.call_function(_aten.sym_size.int, (node.args[0], d)) for d in dims]
                node.replace_all_uses_with(_chain(gm, operator.mul, sizes or [1]))
            elif node.op == "call_function" and str(node.target) in ("aten.sym_size", "aten.sym_size.default"):
                node.target = _aten.sym_size.int
    remove_dead_code(gm).recompile()


def _chain(gm: GraphModule, function: Callable[..., Any], values: Sequence[Any]) -> Any:
    """``function`` of the first two values, of that and the third, and so on."""
    result, *rest = values
    for value in rest:
        result = gm.graph.call_function(function, (result, value))
    return result
