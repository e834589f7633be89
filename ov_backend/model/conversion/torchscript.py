"""The second way to an OpenVINO model: the graph is traced to TorchScript, and that is converted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import openvino as ov
import torch
from openvino.frontend.pytorch.ts_decoder import TorchScriptPythonDecoder
from torch._guards import tracing
from torch.fx import GraphModule, Node

from ov_backend.core import tracing_lock
from ov_backend.core.autocast_regions import is_marked
from ov_backend.core.errors import ConversionError, pass_on_signals
from ov_backend.core.fx_utils import only_first_result_is_read, placeholders
from ov_backend.model.conversion.frontend import pytorch_frontend, summary


def convert_through_torchscript(gm: GraphModule) -> ov.Model:
    """Trace a graph to TorchScript and convert that.

    It is traced over tensors of zeros, as zeros are valid indices for every operator; the model holds none of them.

    Raises:
        ConversionError: the graph cannot be traced, or its trace cannot be converted.
    """
    if any(map(is_marked, gm.graph.nodes)):
        raise ConversionError("the graph is not converted by way of TorchScript, where no mark says what keeps float32")
    gm = compose(gm)
    values = [node.meta["val"] for node in placeholders(gm)]
    zeros = tuple(torch.zeros(tuple(value.shape), dtype=value.dtype) for value in values)
    try:
        with tracing_lock.lock(), torch.no_grad(), tracing(None):
            script = torch.jit.trace(gm, zeros, check_trace=False, strict=False)
        decoder = TorchScriptPythonDecoder(script, skip_freeze=True)  # must stay alive until the conversion returns
        return pytorch_frontend().convert(pytorch_frontend().load(decoder))
    except Exception as error:  # of the trace, or of the converter
        pass_on_signals(error)
        raise ConversionError(f"OpenVINO could not convert the graph by way of TorchScript: {summary(error)}") from error


_aten = torch.ops.aten
Rule = Callable[..., tuple[Any, tuple[Any, ...]]]


def compose(gm: GraphModule) -> GraphModule:
    """Replace every operator of :data:`_RULES` of which no node reads more than the first result; ``gm`` is changed."""
    for node in list(gm.graph.nodes):
        rule = _RULES.get(node.target) if node.op == "call_function" else None
        if rule is not None and _only_first(node):
            _replace(gm, node, *rule(*node.args))
    gm.graph.lint()
    gm.recompile()
    return gm


def _only_first(node: Node) -> bool:
    if not isinstance(node.meta.get("val"), (tuple, list)):
        return True
    return only_first_result_is_read(node)


def _replace(gm: GraphModule, node: Node, target: Any, args: tuple[Any, ...]) -> None:
    value = node.meta.get("val")
    with gm.graph.inserting_before(node):
        composed = gm.graph.call_function(target, args)
    if not isinstance(value, (tuple, list)):
        composed.meta["val"] = value
        node.replace_all_uses_with(composed)
    else:
        composed.meta["val"] = value[0]
        for user in list(node.users):
            user.replace_all_uses_with(composed)
            gm.graph.erase_node(user)
    gm.graph.erase_node(node)


def _copied(x: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    """What ``x.copy_(source)`` leaves in ``x``; of the operator the converter would return ``x``."""
    return source.to(x.dtype).expand(x.shape)


#: By operator, how its arguments become another operator or function and that one's arguments.
_RULES: dict[Any, Rule] = {
    _aten._softmax.default: lambda x, dim, half: (_aten.softmax.int, (x, dim)),
    _aten._log_softmax.default: lambda x, dim, half: (_aten.log_softmax.int, (x, dim)),
    _aten._unsafe_view.default: lambda x, shape: (_aten.view.default, (x, shape)),
    _aten.native_layer_norm.default: lambda x, shape, w, b, eps: (_aten.layer_norm.default, (x, shape, w, b, eps)),
    _aten.native_group_norm.default: lambda x, w, b, n, c, hw, groups, eps: (_aten.group_norm.default, (x, groups, w, b, eps)),
    _aten._native_batch_norm_legit_no_training.default: lambda x, w, b, mean, var, momentum, eps: (
        _aten.batch_norm.default,
        (x, w, b, mean, var, False, momentum, eps, False),
    ),
    _aten.max_pool2d_with_indices.default: lambda *args: (_aten.max_pool2d.default, args),
    _aten.copy.default: lambda x, source, non_blocking=False: (_copied, (x, source)),
}
