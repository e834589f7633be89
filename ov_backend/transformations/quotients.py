"""Quotients with a constant, which the CPU device (OpenVINO 2026.4) computes wrongly together with what precedes them.

A division by a constant that is computed together with a reduction or a product of matrices is wrong at some shapes, and of a
constant that is divided by a layer's result the device makes the result divided by the constant.
"""

from __future__ import annotations

import numpy as np
import openvino as ov
from openvino import opset13

from ov_backend.transformations.nodes import Constants, hidden, replace

#: What may make another number of one whose last bit differs.
_ROUNDING = frozenset({"Ceiling", "Floor", "FloorMod", "Mod", "Round", "Sign"})
#: Operators that keep a value's numbers, or compute with each by itself.
_BY_ELEMENT = frozenset({
    "Abs", "Add", "Broadcast", "Clamp", "Concat", "Convert", "Divide", "Gather", "Maximum", "Minimum", "Multiply", "Negative",
    "Pad", "Power", "Relu", "Reshape", "Select", "Slice", "Split", "Sqrt", "Squeeze", "StridedSlice", "Subtract", "Tile",
    "Transpose", "Unsqueeze", "VariadicSplit",
})


def avoid_faults_of_quotient(node: ov.Node, constants: Constants) -> None:
    """Multiply, in place of a division, by the reciprocal of a constant, or else hide that it is constant.

    A reciprocal may change the last bit, which decides the whole number that a quotient is rounded to.
    """
    dtype, divisor = node.get_output_element_type(0), node.input_value(1).get_node()
    while divisor.get_type_name() in ("Convert", "ConvertLike"):
        divisor = divisor.input_value(0).get_node()
    if divisor.get_type_name() == "Constant" and dtype.to_string() == "f32" and not _is_rounded(node):
        with np.errstate(divide="ignore", over="ignore"):
            reciprocal = np.divide(1, divisor.get_data(dtype=np.float32), dtype=np.float32)
        if np.isfinite(reciprocal).all() and (np.abs(reciprocal) >= np.finfo(np.float32).tiny).all():
            replace(node, opset13.multiply(node.input_value(0), opset13.constant(reciprocal)))
            return
    side = int(node.input_value(1) in constants)
    value, constant = node.input_value(1 - side), node.input_value(side)
    # So the device computes the quotient by itself.
    node.input(side).replace_source_output(hidden(constant, value).output(0))


def _is_rounded(node: ov.Node) -> bool:
    """Whether something may decide by the last bit of a value, or of what is computed of it element by element."""
    waiting, seen = [node], set[str]()
    while waiting:
        for target in waiting.pop().output(0).get_target_inputs():
            reader = target.get_node()
            if reader.get_type_name() in ("Result", "ShapeOf"):
                continue
            if reader.get_type_name() in _ROUNDING or not reader.get_output_element_type(0).is_real():
                return True
            if reader.get_name() not in seen and reader.get_type_name() in _BY_ELEMENT:
                seen.add(reader.get_name())
                waiting.append(reader)
    return False
