"""Multiplications by one are removed: in half precision the CPU device would multiply the weights by it, into a copy."""

from __future__ import annotations

import math

import numpy as np
import openvino as ov


def remove_multiplications_by_one(model: ov.Model) -> None:
    """Remove, in place, every product of a value and a constant one that has the value's own shape.

    A result whose value is an input keeps its product: where a result is a parameter, the CPU device returns memory that
    it never wrote (:func:`ov_backend.model.conversion.converter.convert` adds a cast there for the same reason).
    """
    for node in model.get_ordered_ops():
        if node.get_type_name() == "Multiply":
            _remove(node)


def _remove(product: ov.Node) -> None:
    for i in range(2):
        value, factor = product.input_value(1 - i), product.input_value(i)
        if _is_one(factor) and value.get_partial_shape() == product.get_output_partial_shape(0):
            from_input = _without_converts(value).get_type_name() == "Parameter"
            for target in product.output(0).get_target_inputs():
                if not (from_input and target.get_node().get_type_name() == "Result"):
                    target.replace_source_output(value)
            return


def _is_one(factor: ov.Output) -> bool:
    constant = _without_converts(factor)
    is_scalar = constant.get_type_name() == "Constant" and math.prod(constant.get_output_shape(0)) == 1
    return bool(is_scalar and constant.get_data(dtype=np.float32) == 1)


def _without_converts(value: ov.Output) -> ov.Node:
    """The node that a value comes from, before its conversions of the element type."""
    node = value.get_node()
    while node.get_type_name() == "Convert":
        node = node.input_value(0).get_node()
    return node
