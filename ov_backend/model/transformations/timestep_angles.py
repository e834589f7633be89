"""Sines and cosines of timesteps, kept exact where the CPU device computes in bfloat16 what is between layers of 8 bits.

All other models get the types of PyTorch's autocast (:mod:`ov_backend.model.transformations.autocast_types`).

A timestep of 813.37 is 812 in bfloat16, and an angle computed from it is off by more than a radian. So the timestep is split
into three parts that bfloat16 holds exactly. The sum of their products is reduced to one turn, which the device computes in
registers, in float32.
"""

from __future__ import annotations

import math

import numpy as np
import openvino as ov
import openvino.opset13 as ops
import torch

from ov_backend.core.tensors import TO_OV

#: Inputs with more elements are not timesteps.
_MAX_ELEMENTS = 64
_SAME_ELEMENTS = frozenset({"Unsqueeze", "Reshape", "Squeeze", "Broadcast"})
_STEP = 64


def keep_angles_exact(model: ov.Model) -> None:
    """Rewrite, in place, the argument of every sine and cosine that is an input multiplied or divided by factors."""
    exact_angles: dict[str, ov.Output | None] = {}
    for node in model.get_ordered_ops():
        if node.get_type_name() in ("Sin", "Cos"):
            angle = node.input_value(0)
            name = angle.get_node().get_friendly_name()
            if name not in exact_angles:
                exact_angles[name] = _exact(angle)
            exact = exact_angles[name]
            if exact is not None:
                node.input(0).replace_source_output(exact)


def _exact(angle: ov.Output) -> ov.Output | None:
    source = _source(angle)
    if source is None:
        return None
    first, second, third = (_times(angle, source, part) for part in _parts(source))
    total = ops.add(ops.add(first, second), third)
    turns = ops.floor(ops.add(ops.multiply(total, _number(1 / math.tau)), _number(0.5)))
    return ops.subtract(total, ops.multiply(turns, _number(math.tau))).output(0)


def _number(value: float) -> ov.Node:
    return ops.constant(np.float32(value))


def _source(value: ov.Output) -> ov.Output | None:
    """The input that a value is a multiple of, at the first node where it is float32; None if there is not exactly one."""
    node = value.get_node()
    operator = node.get_type_name()
    if not value.get_partial_shape().is_static or value.get_element_type() != TO_OV[torch.float32]:
        return None
    is_small = math.prod(value.get_shape()) <= _MAX_ELEMENTS
    if operator == "Parameter":
        return value if is_small else None
    if operator == "Convert" and node.input_value(0).get_element_type() in (TO_OV[torch.int64], TO_OV[torch.int32]):
        return value if is_small and _leads_to_input(node) else None
    if operator in _SAME_ELEMENTS or (operator == "Slice" and _takes_all(node)):
        source = _source(node.input_value(0))
        has_same_size = source is not None and math.prod(source.get_shape()) == math.prod(value.get_shape())
        return source if has_same_size else None
    if operator == "Multiply":
        left, right = (_source(node.input_value(i)) for i in range(2))
        return left if right is None else right if left is None else None
    if operator == "Divide":
        return _source(node.input_value(0)) if _source(node.input_value(1)) is None else None
    return None


def _leads_to_input(node: ov.Node) -> bool:
    """Whether a chain of operators, followed through their first arguments, starts at an input."""
    while node.get_input_size():
        node = node.input_value(0).get_node()
    return bool(node.get_type_name() == "Parameter")


def _takes_all(node: ov.Node) -> bool:
    steps = node.input_value(3).get_node()
    forward = steps.get_type_name() == "Constant" and bool((steps.get_data() == 1).all())
    return forward and node.get_input_shape(0) == node.get_output_shape(0)


def _parts(source: ov.Output) -> tuple[ov.Output, ov.Output, ov.Output]:
    """Three values that add up to the source: two whole numbers, exact in bfloat16 up to 16384, and the fraction."""
    node = source.get_node()
    if node.get_type_name() == "Convert":
        integer = ops.convert(node.input_value(0), "i32")
        high = ops.multiply(ops.divide(integer, np.int32(_STEP)), np.int32(_STEP))
        low = ops.subtract(integer, high)
        zero = ops.multiply(low, np.int32(0))
        return tuple(ops.convert(part, "f32").output(0) for part in (high, low, zero))
    high = ops.multiply(ops.floor(ops.multiply(source, _number(1 / _STEP))), _number(_STEP))
    low = ops.floor(ops.subtract(source, high))
    fraction = ops.subtract(ops.subtract(source, high), low)
    return high.output(0), low.output(0), fraction.output(0)


def _times(value: ov.Output, source: ov.Output, part: ov.Output) -> ov.Output:
    """``value``, computed from ``part`` instead of its source."""
    if value == source:
        return part
    node = value.get_node()
    if node.get_type_name() not in ("Multiply", "Divide"):
        shape = np.array(list(value.get_shape()), dtype=np.int64)
        return ops.reshape(_times(node.input_value(0), source, part), shape, False).output(0)
    left, right = node.input_value(0), node.input_value(1)
    if node.get_type_name() == "Divide":
        return ops.divide(_times(left, source, part), right).output(0)
    if _source(left) is not None:
        return ops.multiply(_times(left, source, part), right).output(0)
    return ops.multiply(left, _times(right, source, part)).output(0)
