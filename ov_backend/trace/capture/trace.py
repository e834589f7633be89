"""The trace of a function over fake tensors: an ATen graph without in-place operators, whose first placeholders are the slots."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._guards import tracing
from torch._subclasses import FakeTensor, FakeTensorMode
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException
from torch.func import functionalize
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

from ov_backend.core import tracing_lock
from ov_backend.core.autocast_regions import traced_again
from ov_backend.core.errors import CaptureError, first_line, pass_on_signals
from ov_backend.core.fx_utils import lazy_code
from ov_backend.core.tracing_flag import flag_of_this_thread
from ov_backend.guards.pytree import Spec
from ov_backend.trace.capture.opaque_operators import WholeRecurrences
from ov_backend.trace.lowering.functionalize import functionalize_intermediates, mutates


@dataclass(frozen=True)
class Captured:
    """One traced call: an ATen graph, and the names of its placeholders, which are the slots, then the inputs.

    ``output`` describes what the call returns, over the graph's flat outputs. ``retrace`` traces a graph with symbolic sizes anew
    with other decompositions; None for others.
    """

    gm: GraphModule
    slots: tuple[str, ...]
    inputs: tuple[str, ...]
    output: Spec
    retrace: Callable[[Mapping[Any, Any]], GraphModule] | None = None


#: Operators whose operands must be of one dtype.
_OF_ONE_DTYPE = frozenset(
    {torch.ops.aten.mm.default, torch.ops.aten.addmm.default, torch.ops.aten.bmm.default, torch.ops.aten.baddbmm.default}
    | {torch.ops.aten.convolution.default, torch.ops.aten.linear.default}
)

#: Operators that raise where a value is not true, and return nothing.
ASSERTIONS = frozenset({torch.ops.aten._assert_async, getattr(torch.ops.aten, "_functional_assert_async", None)} - {None})
_NORMS = frozenset({torch.ops.aten.native_group_norm.default, torch.ops.aten.native_layer_norm.default})


def trace(
    function: Callable[..., Any],
    slots: list[torch.Tensor],
    inputs: Sequence[Any],
    decompositions: Mapping[Any, Any] | None = None,
) -> GraphModule:
    """Trace ``function(slots, inputs)`` over fake tensors into an ATen graph without in-place operators."""
    try:
        gm = functionalize_intermediates(_without_labels(_make_fx(function, slots, inputs, decompositions)))
        if any(mutates(node) for node in gm.graph.nodes):  # of the graph: torch 2.1 mixes up fake weights in the function's own
            gm = _make_fx(functionalize(traced_again(gm), remove="mutations"), slots, inputs, decompositions)
    except CaptureError:
        raise
    except Exception as error:  # whatever a module's own Python raises under trace: it cannot be captured
        pass_on_signals(error)
        raise CaptureError(why_untraceable(error)) from error
    written = [node for node in gm.graph.nodes if mutates(node)]
    if written:
        raise CaptureError(f"it writes to its inputs or weights ({written[0].target})")
    refuse_assertions(gm)
    return gm


def _without_labels(gm: GraphModule) -> GraphModule:
    """Without the operators of ``torch.profiler.record_function``, which label what is between them for a profiler."""
    for node in reversed(gm.graph.nodes):
        if getattr(node.target, "namespace", "") == "profiler":
            gm.graph.erase_node(node)
    return gm


def refuse_assertions(gm: GraphModule) -> None:
    """Raise where a graph asserts something, which OpenVINO would leave out."""
    if any(getattr(node.target, "overloadpacket", None) in ASSERTIONS for node in gm.graph.nodes):
        raise CaptureError("it asserts something of a tensor's values, for which a compiled graph would not raise")


def _make_fx(function: Any, slots: list[torch.Tensor], inputs: Sequence[Any], decompositions: Any) -> GraphModule:
    # Inside a Dynamo backend, Dynamo's own fake mode must not be touched: trace outside of its context.
    fakes = FakeTensorMode(allow_non_fake_inputs=True)
    with tracing_lock.lock(), tracing(None), torch.inference_mode(False), torch.no_grad():
        fake = [_fake(fakes, tensor) for tensor in slots]
        values = [_fake(fakes, value) if isinstance(value, torch.Tensor) else value for value in inputs]
        with fakes, lazy_code(), flag_of_this_thread(), WholeRecurrences():
            return make_fx(function, decomposition_table=dict(decompositions or {}))(fake, values)


def _fake(mode: FakeTensorMode, tensor: torch.Tensor) -> torch.Tensor:
    fake = _plain_fake(mode, tensor)
    return fake.requires_grad_() if tensor.requires_grad and tensor.is_leaf else fake


def _plain_fake(mode: FakeTensorMode, tensor: torch.Tensor) -> torch.Tensor:
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.layout is not torch.strided or tensor.is_quantized:
        return mode.from_tensor(tensor.detach())
    like = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")
    return FakeTensor(mode, like, tensor.device)  # as from_tensor makes it, which looks into much more than a plain one has


def _is_generator(gm: GraphModule, value: Any) -> bool:
    """Whether an operand is a generator of random numbers; newer versions of PyTorch keep it on the graph's module."""
    if isinstance(value, torch.fx.Node) and value.op == "get_attr":
        value = getattr(gm, str(value.target), None)
    return isinstance(value, torch.Generator)


def check_operators(gm: GraphModule) -> None:
    """Raise for operators that PyTorch refuses although a trace does not, and for random numbers that come from a generator."""
    for node in gm.graph.nodes:
        dtypes = {each.meta["val"].dtype for each in node.all_input_nodes if isinstance(each.meta.get("val"), torch.Tensor)}
        if node.target in _NORMS and node.args[0].meta["val"].dtype is torch.float32:  # half precision may have float32 weights
            dtypes -= {torch.float32}
            mixed = bool(dtypes)
        else:
            mixed = node.target in _OF_ONE_DTYPE and len(dtypes) > 1
        if mixed:
            raise CaptureError(f"{node.target} mixes {' and '.join(sorted(map(str, dtypes)))}, which PyTorch refuses")
        if any(_is_generator(gm, value) for value in [*node.args, *node.kwargs.values()]):
            raise CaptureError("its forward draws numbers from a generator of its own, which a compiled graph would not seed")


def why_untraceable(error: Exception) -> str:
    """What a trace cannot follow, by the exception that it raised."""
    if isinstance(error, DynamicOutputShapeException):
        why = f"the size of a result depends on values ({error.func})"
    elif isinstance(error, DataDependentOutputException):
        why = f"it asks for a value of a tensor, as .item() and `if` do ({error.func})"
    elif any(frame.f_code is torch.nn.Module._apply.__code__ for frame, _ in traceback.walk_tb(error.__traceback__)):
        why = "while it runs, it moves weights or casts them to another dtype, as hooks for offloading and layerwise casting do"
    elif isinstance(error, getattr(torch._dynamo.exc, "UncapturedHigherOrderOpError", ())):
        why = "it calls torch.cond or another operator of higher order, for which PyTorch asks Dynamo; use torch.compile"
    else:
        why = f"{type(error).__name__}: {first_line(error)}"
    return f"it cannot be traced: {why}"
