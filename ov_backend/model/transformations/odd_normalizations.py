"""Normalisations that end the process where oneDNN is held to an older instruction set than the processor has."""

from __future__ import annotations

import math

import numpy as np
import openvino as ov
import openvino.opset13 as ops

#: What is reduced must be a multiple of this.
_MULTIPLE = 16


def decompose_odd_normalizations(model: ov.Model) -> None:
    """Decompose, in place, every MVN operator over a number of elements that is known and no multiple of 16.

    LayerNorm becomes an MVN operator; the networks of Stable Diffusion have multiples only.
    """
    for node in model.get_ordered_ops():
        if node.get_type_name() == "MVN" and _elements(node) % _MULTIPLE:
            _decompose(node)


def _elements(node: ov.Node) -> int:
    """The number of elements that are normalised together; 0 if it is not known."""
    shape, axes = node.get_input_partial_shape(0), node.input_value(1)
    if axes.get_node().get_type_name() == "Constant":
        numbers = [int(axis) for axis in axes.get_node().get_data().reshape(-1)]
    elif axes.get_partial_shape().is_static:  # LayerNorm computes them: the last ones
        numbers = [-1 - i for i in range(axes.get_shape()[0])]
    else:
        return 0
    if shape.rank.is_dynamic or any(shape[axis].is_dynamic for axis in numbers):
        return 0
    return math.prod(shape[axis].get_length() for axis in numbers)


def _decompose(node: ov.Node) -> None:
    x, axes = node.input_value(0), node.input_value(1)
    attributes = node.get_attributes()
    result = ops.subtract(x, ops.reduce_mean(x, axes, True))
    if attributes["normalize_variance"]:
        size = ops.abs(result)  # the device would fuse the deviation's square to MVN again
        variance = ops.reduce_mean(ops.multiply(size, size), axes, True)
        epsilon = _number(float(attributes["eps"]), x)
        if attributes["eps_mode"].lower() == "inside_sqrt":
            scale = ops.power(ops.add(variance, epsilon), _number(-0.5, x))
        else:
            scale = ops.power(ops.add(ops.power(variance, _number(0.5, x)), epsilon), _number(-1.0, x))
        result = ops.multiply(result, scale)
    result.set_friendly_name(node.get_friendly_name())
    for reader in node.output(0).get_target_inputs():
        reader.replace_source_output(result.output(0))


def _number(value: float, like: ov.Output) -> ov.Node:
    return ops.constant(np.array(value), like.get_element_type())
