"""Rewrites around faults of the CPU device, where another form of the same computation is right.

Both were seen with OpenVINO 2026.4. Of one-dimensional values, an absolute value after a concatenation is moved in front of it,
also for those who read the concatenation itself. A reduction of integers, which the device computes together with the arithmetic
after it, writes a part of its result only at some shapes.
"""

from __future__ import annotations

import numpy as np
import openvino as ov
from openvino import opset13

_REDUCTIONS = frozenset({"ReduceMax", "ReduceMin", "ReduceSum", "ReduceProd", "ReduceMean"})


def avoid_faults(model: ov.Model) -> None:
    """Rewrite, in place, what the CPU device would get wrong."""
    for node in model.get_ordered_ops():
        kind = node.get_type_name()
        if kind == "Abs" and len(node.get_output_shape(0)) == 1 and node.input_value(0).get_node().get_type_name() == "Concat":
            _behind_a_reshape(node)
        elif kind in _REDUCTIONS and node.get_output_element_type(0).is_integral():
            _in_floats(node)


def _behind_a_reshape(node: ov.Node) -> None:
    shape = list(node.get_output_shape(0))
    row = opset13.reshape(node.input_value(0), np.array([1, *shape]), False)
    _replace(node, opset13.reshape(opset13.abs(row), np.array(shape), False))


def _in_floats(node: ov.Node) -> None:
    """The device computes reductions of integers in float32 anyway."""
    dtype = node.get_output_element_type(0)
    reduction = getattr(opset13, f"reduce_{node.get_type_name().removeprefix('Reduce').lower()}")
    floats = opset13.convert(node.input_value(0), "f32")
    _replace(node, opset13.convert(reduction(floats, node.input_value(1), node.get_keep_dims()), dtype))


def _replace(node: ov.Node, new: ov.Node) -> None:
    new.set_friendly_name(node.get_friendly_name())
    for target in node.output(0).get_target_inputs():
        target.replace_source_output(new.output(0))
