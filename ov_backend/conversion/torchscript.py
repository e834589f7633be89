"""The second way to an OpenVINO model: the graph is traced to TorchScript, and that is converted."""

from __future__ import annotations

import openvino as ov
import torch
from openvino.frontend.pytorch.ts_decoder import TorchScriptPythonDecoder
from torch._guards import tracing
from torch.fx import GraphModule

from ov_backend.conversion.frontend import frontend, summary
from ov_backend.conversion.torchscript_ops import compose
from ov_backend.errors import ConversionError
from ov_backend.fx_utils import placeholders


def translate_script(gm: GraphModule) -> ov.Model:
    """Trace over tensors of zeros, which are indices that no operator refuses; nothing of them stays in the model."""
    gm = compose(gm)
    values = [node.meta["val"] for node in placeholders(gm)]
    zeros = tuple(torch.zeros(tuple(value.shape), dtype=value.dtype) for value in values)
    try:
        with torch.no_grad(), tracing(None):
            script = torch.jit.trace(gm, zeros, check_trace=False, strict=False)
        read = TorchScriptPythonDecoder(script, skip_freeze=True)  # must stay alive until the conversion returns
        return frontend().convert(frontend().load(read))
    except Exception as error:  # of the trace, or of the converter
        raise ConversionError(f"OpenVINO could not convert the graph by way of TorchScript: {summary(error)}") from error
