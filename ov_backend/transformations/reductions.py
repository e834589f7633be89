"""Reductions that the CPU device (OpenVINO 2026.4) gets wrong, and what it makes of a transpose behind them.

- A reduction of integers, which the device computes together with the arithmetic after it, writes a part of its result only at
  some shapes.
- A reduction of the first or the last of three axes, together with a sum or product with one number for each row of the second
  axis, takes another row's numbers; so does one behind a transpose, which OpenVINO moves behind it.
- The largest of values that are all -inf was the lowest finite number, the smallest of values that are all inf the highest one;
  so was the largest value of such a pooling window.
- A transpose behind a reduction that drops axes, which moves axes of length one only, or a change of shape, was left out: the
  result had the shape from before.
"""

from __future__ import annotations

import math

import numpy as np
import openvino as ov
from openvino import opset13

from ov_backend.transformations.nodes import Constants, replace, rolled

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


def avoid_faults_of_reduction(node: ov.Node, constants: Constants) -> None:
    """Rewrite a reduction, in place, if the device would get it wrong."""
    if node.get_output_element_type(0).is_integral():
        _in_floats(node)
        return
    if (axis := _outer_axis(node)) is not None and _meets_rows(node, constants):
        node = _of_two_axes(node, axis)
    elif node.input_value(0).get_node().get_type_name() == "Transpose" and _meets_rows(node, constants):
        node.input(0).replace_source_output(rolled(node.input_value(0)).output(0))
    if node.get_type_name() in _FIRST:
        of_infinities(node)
    elif not node.get_keep_dims() and any(reader in _SHAPES for reader in _kinds_of_readers(node)):
        _in_two_steps(node)


def of_infinities(node: ov.Node) -> None:
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


def is_behind_a_reduction(node: ov.Node) -> bool:
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


def as_reshape(node: ov.Node) -> None:
    """Change a transpose that moves axes of length one only to a change of shape."""
    replace(node, opset13.reshape(node.input_value(0), np.array(node.get_output_shape(0)), False))


def _in_floats(node: ov.Node) -> None:
    """The device computes reductions of integers in float32 anyway."""
    dtype = node.get_output_element_type(0)
    reduction = getattr(opset13, f"reduce_{node.get_type_name().removeprefix('Reduce').lower()}")
    floats = opset13.convert(node.input_value(0), "f32")
    replace(node, opset13.convert(reduction(floats, node.input_value(1), node.get_keep_dims()), dtype))


def _kinds_of_readers(node: ov.Node) -> list[str]:
    return [target.get_node().get_type_name() for target in node.output(0).get_target_inputs()]


def _in_two_steps(node: ov.Node) -> None:
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


def _of_two_axes(node: ov.Node, axis: int) -> ov.Node:
    """Put a reduction over two axes, one of which is the two others together, in place of one over three."""
    first, second, third = node.get_input_shape(0)
    rows = [first, second * third] if axis == 0 else [first * second, third]
    reduction = getattr(opset13, f"reduce_{node.get_type_name().removeprefix('Reduce').lower()}")
    reduced = reduction(opset13.reshape(node.input_value(0), np.array(rows), False), np.array([min(axis, 1)]), False)
    replace(node, opset13.reshape(reduced, np.array(node.get_output_shape(0)), False))
    return reduced
