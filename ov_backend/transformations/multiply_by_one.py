"""Multiplications by one are removed: in half precision the CPU device would multiply the weights by it, into a copy."""

from __future__ import annotations

import math

import openvino as ov


def remove_multiplications_by_one(model: ov.Model) -> None:
    """Remove, in place, every product of a value and a constant one that has the value's own shape."""
    for node in model.get_ordered_ops():
        if node.get_type_name() == "Multiply":
            _remove(node)


def _remove(node: ov.Node) -> None:
    for i in range(2):
        kept, factor = node.input_value(1 - i), node.input_value(i).get_node()
        while factor.get_type_name() == "Convert":
            factor = factor.input_value(0).get_node()
        is_one = factor.get_type_name() == "Constant" and math.prod(factor.get_output_shape(0)) == 1 and factor.get_data() == 1
        if is_one and kept.get_partial_shape() == node.get_output_partial_shape(0):
            for target in node.output(0).get_target_inputs():
                target.replace_source_output(kept)
            return
