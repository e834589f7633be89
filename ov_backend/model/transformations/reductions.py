"""Reductions and sums that the CPU device (OpenVINO 2026.4) gets wrong, and what it makes of a transpose behind them.

A sum of 256 ones and one more is 256 in bfloat16, in which the device computes running and scattered sums. All other sums,
products and norms over an axis it adds up in float32, and rounds the result once.
"""

from __future__ import annotations

import math

import numpy as np
import openvino as ov
import torch
from openvino import opset13

from ov_backend.core.tensors import TO_OV
from ov_backend.model.transformations.nodes import Constants, replace, rolled
from ov_backend.model.transformations.rule import Rule

REDUCTIONS = frozenset({"ReduceL1", "ReduceL2", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum"})
#: The first value that the device compares with, where the result may be no number of its input.
_FIRST = {"ReduceMax": -np.finfo(np.float32).max, "MaxPool": -np.finfo(np.float32).max, "ReduceMin": np.finfo(np.float32).max}
#: What the device computes together with a reduction before it.
_TOGETHER = frozenset({
    "Abs", "Add", "Clamp", "Convert", "Divide", "Exp", "Gelu", "HSigmoid", "HSwish", "Maximum", "Minimum", "Mish", "Multiply",
    "Negative", "PRelu", "Power", "Relu", "Reshape", "Sigmoid", "SoftPlus", "Sqrt", "Squeeze", "Subtract", "Swish", "Tanh",
    "Unsqueeze",
})

_SHAPES = frozenset({"Reshape", "Transpose"})


def _is_of_floats(node: ov.Node, constants: Constants) -> bool:
    return bool(node.get_output_element_type(0).is_real())


def halve_before_extremum(node: ov.Node, constants: Constants) -> None:
    """Have a ``ReduceMax``, ``ReduceMin`` or ``MaxPool`` of floats find infinities.

    It reads halves, which are never as large as the finite number that the device begins with: where that is the result, nothing
    finite was there.
    """
    dtype, first = node.get_output_element_type(0), _FIRST[node.get_type_name()]
    half, double, limit, infinity = (
        opset13.convert(opset13.constant(np.float32(value)), dtype.to_string())
        for value in (0.5, 2.0, 0.75 * first, math.copysign(math.inf, first))
    )
    readers, read = node.output(0).get_target_inputs(), node.input_value(0)
    if dtype.to_string() == "f32":
        halves = opset13.multiply(read, half)
    else:  # in bfloat16 the device cannot compute a product together with a resize before it
        halves = opset13.convert(opset13.multiply(opset13.convert(read, "f32"), np.float32(0.5)), dtype.to_string())
    node.input(0).replace_source_output(halves.output(0))
    found = node.output(0)
    nothing = opset13.less(found, limit) if first < 0 else opset13.greater(found, limit)
    result = opset13.select(nothing, infinity, opset13.multiply(found, double))
    for reader in readers:
        reader.replace_source_output(result.output(0))


def _is_behind_a_reduction(node: ov.Node, constants: Constants) -> bool:
    """Whether a transpose moves axes of length one only, behind a reduction that the device may compute together with it."""
    order, shape = node.input_value(1).get_node(), node.get_input_partial_shape(0)
    if order.get_type_name() != "Constant" or not shape.is_static:
        return False
    moved = [int(axis) for axis in order.data.reshape(-1)]
    longer = [axis for axis in moved if shape[axis] != 1]
    if moved == sorted(moved) or longer != sorted(longer):
        return False
    waiting, seen = [node.input_value(0).get_node()], set[str]()
    while waiting:
        source = waiting.pop()
        if source.get_type_name() in REDUCTIONS:
            return True
        if source.get_type_name() in _TOGETHER and source.get_name() not in seen:
            seen.add(source.get_name())
            waiting += [value.get_node() for value in source.input_values()]
    return False


def transpose_as_reshape(node: ov.Node, constants: Constants) -> None:
    """Change a transpose that moves axes of length one only to a change of shape."""
    replace(node, opset13.reshape(node.input_value(0), np.array(node.get_output_shape(0)), False))


def _is_of_integers(node: ov.Node, constants: Constants) -> bool:
    return bool(node.get_output_element_type(0).is_integral())


def reduce_in_floats(node: ov.Node, constants: Constants) -> None:
    """Reduce in float32, in which the device computes reductions of integers anyway."""
    dtype = node.get_output_element_type(0)
    reduction = getattr(opset13, f"reduce_{node.get_type_name().removeprefix('Reduce').lower()}")
    floats = opset13.convert(node.input_value(0), "f32")
    replace(node, opset13.convert(reduction(floats, node.input_value(1), node.get_keep_dims()), dtype))


def _drops_axes_before_a_shape(node: ov.Node, constants: Constants) -> bool:
    """Whether a reduction drops axes, and a transpose or another change of shape follows."""
    readers = [target.get_node().get_type_name() for target in node.output(0).get_target_inputs()]
    return not node.get_keep_dims() and any(reader in _SHAPES for reader in readers)


def drop_axes_afterwards(node: ov.Node, constants: Constants) -> None:
    """Keep the reduced axes, and drop them afterwards."""
    reduction = getattr(opset13, f"reduce_{node.get_type_name().removeprefix('Reduce').lower()}")
    replace(node, opset13.squeeze(reduction(node.input_value(0), node.input_value(1), True), node.input_value(1)))


def _outer_axis(node: ov.Node) -> int | None:
    """The axis that is reduced, if it is the first or the last of three."""
    axes, shape = node.input_value(1).get_node(), node.get_input_partial_shape(0)
    if axes.get_type_name() != "Constant" or not shape.is_static or len(shape) != 3:
        return None
    reduced = {int(axis) % 3 for axis in axes.data.reshape(-1)}
    return reduced.pop() if reduced in ({0}, {2}) else None


def _meets_rows_outside(node: ov.Node, constants: Constants) -> bool:
    return _outer_axis(node) is not None and _meets_rows(node, constants)


def _meets_rows_transposed(node: ov.Node, constants: Constants) -> bool:
    return node.input_value(0).get_node().get_type_name() == "Transpose" and _meets_rows(node, constants)


def _meets_rows(node: ov.Node, constants: Constants) -> bool:
    """Whether a result, or what is computed of it element by element, meets a constant of fewer elements than it has."""
    elements = math.prod(node.get_output_shape(0))
    waiting, seen = [node.output(0)], set[str]()
    while waiting:
        for target in waiting.pop().get_target_inputs():
            reader = target.get_node()
            if reader.get_name() in seen or reader.get_output_size() != 1 or _elements(reader.output(0)) != elements:
                continue
            seen.add(reader.get_name())
            others = [reader.input_value(i) for i in range(reader.get_input_size()) if i != target.get_index()]
            if any(1 < _elements(each) < elements and each in constants for each in others):
                return True
            waiting.append(reader.output(0))
    return False


def _elements(output: ov.Output) -> int:
    """How many elements a value has; -1 where its shape is not known."""
    shape = output.get_partial_shape()
    return math.prod(shape.to_shape()) if shape.is_static else -1


def reduce_in_two_axes(node: ov.Node, constants: Constants) -> ov.Node:
    """Put a reduction over two axes, one of which is the two others together, in place of one over three."""
    first, second, third = node.get_input_shape(0)
    axis = 0 if _outer_axis(node) == 0 else 1
    rows = [first, second * third] if axis == 0 else [first * second, third]
    reduction = getattr(opset13, f"reduce_{node.get_type_name().removeprefix('Reduce').lower()}")
    reduced = reduction(opset13.reshape(node.input_value(0), np.array(rows), False), np.array([axis]), False)
    replace(node, opset13.reshape(reduced, np.array(node.get_output_shape(0)), False))
    return reduced


def roll_before_reduction(node: ov.Node, constants: Constants) -> ov.Node:
    """Have a reduction read a transpose rolled by nothing."""
    node.input(0).replace_source_output(rolled(node.input_value(0)).output(0))
    return node


_HALVES = tuple(TO_OV[dtype] for dtype in (torch.bfloat16, torch.float16))


def _adds_up_halves(node: ov.Node, constants: Constants) -> bool:
    only_moves = "Scatter" in node.get_type_name() and node.get_attributes().get("reduction", "none") == "none"
    return node.get_output_element_type(0) in _HALVES and not only_moves


def add_up_in_float32(node: ov.Node, constants: Constants) -> None:
    """Convert what is added up to float32, and the sum back."""
    dtype = node.get_output_element_type(0)
    readers = node.output(0).get_target_inputs()
    for port in node.inputs():
        if port.get_element_type() == dtype:
            port.replace_source_output(opset13.convert(port.get_source_output(), "f32").output(0))
    node.validate_and_infer_types()
    rounded = opset13.convert(node, dtype.to_string())
    for reader in readers:
        reader.replace_source_output(rounded.output(0))


RULES = (
    Rule(
        "of a reduction of integers that is computed together with the arithmetic after it, a part of the result is not"
        " written at some shapes",
        REDUCTIONS,
        _is_of_integers,
        reduce_in_floats,
    ),
    Rule(
        "a reduction of the first or the last of three axes, together with a sum or product with one number for each row"
        " of the second axis, takes another row's numbers",
        REDUCTIONS,
        _meets_rows_outside,
        reduce_in_two_axes,
    ),
    Rule(
        "a reduction behind a transpose, which is moved behind it, takes another row's numbers together with one number"
        " for each row",
        REDUCTIONS,
        _meets_rows_transposed,
        roll_before_reduction,
    ),
    Rule(
        "the largest of values that are all -inf is the lowest finite number, the smallest of values that are all inf the"
        " highest one; so is the largest value of such a pooling window",
        frozenset(_FIRST),
        _is_of_floats,
        halve_before_extremum,
    ),
    Rule(
        "a transpose or another change of shape behind a reduction that drops axes is left out: the result has the shape"
        " from before",
        REDUCTIONS - frozenset(_FIRST),
        _drops_axes_before_a_shape,
        drop_axes_afterwards,
    ),
    Rule(
        "a transpose behind a reduction, which moves axes of length one only, is left out: the result has the shape from"
        " before",
        frozenset({"Transpose"}),
        _is_behind_a_reduction,
        transpose_as_reshape,
    ),
    Rule(
        "a sum in bfloat16 is rounded at each step: a sum of 256 ones and one more is 256",
        frozenset({"Col2Im", "CumSum", "ScatterElementsUpdate", "ScatterNDUpdate"}),
        _adds_up_halves,
        add_up_in_float32,
    ),
)
