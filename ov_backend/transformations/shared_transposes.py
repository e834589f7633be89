"""Transposes that get an input of their own."""

from __future__ import annotations

import numpy as np
import openvino as ov
import openvino.opset13 as ops


def copy_shared_inputs(model: ov.Model) -> None:
    """Copy, in place, what a transpose reads if others read it too.

    Where a transpose feeds a convolution, the CPU device (OpenVINO 2026.4) takes the untransposed memory for channels that
    stand last, and does not see that another reader may overwrite it: ``y`` that goes to a transpose and a convolution, and to a
    reshape and a product, gave a wrong convolution. A roll by nothing copies, and is the one copy that the device does not
    remove.
    """
    for node in model.get_ordered_ops():
        if node.get_type_name() != "Transpose" or node.input_value(0).get_node().get_type_name() == "Constant":
            continue
        source = node.input_value(0)
        if len(source.get_target_inputs()) > 1:
            zero = ops.constant(np.zeros(1, np.int64))
            node.input(0).replace_source_output(ops.roll(source, zero, zero).output(0))
