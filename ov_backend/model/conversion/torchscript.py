"""The second way to an OpenVINO model: the graph is traced to TorchScript, and that is converted."""

from __future__ import annotations

import openvino as ov
import torch
from openvino.frontend.pytorch.ts_decoder import TorchScriptPythonDecoder
from torch._guards import tracing
from torch.fx import GraphModule

from ov_backend.core import tracing_lock
from ov_backend.core.autocast_regions import is_marked
from ov_backend.core.errors import ConversionError, pass_on_signals
from ov_backend.core.fx_utils import placeholders
from ov_backend.model.conversion.frontend import pytorch_frontend, summary
from ov_backend.model.conversion.torchscript_ops import compose


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
