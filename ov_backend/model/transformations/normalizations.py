"""Group normalisation in the form that the CPU device computes fastest."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import openvino as ov
import openvino.opset13 as ops


def decompose_group_norms(model: ov.Model, corrected: bool) -> None:
    """Decompose, in place, every group normalisation of pixels into operations on single channels.

    ``corrected``: sums over many pixels are corrected for their rounding errors, which float32 needs.
    """
    for node in model.get_ordered_ops():
        if node.get_type_name() == "GroupNormalization" and _static_spatial(node):
            _decompose(node, corrected)


def _static_spatial(node: ov.Node) -> bool:
    shape = node.get_input_partial_shape(0)
    return shape.is_static and len(shape) > 2


def _decompose(node: ov.Node, corrected: bool) -> None:
    """Compute group normalisation from the means and variances of single channels.

    The device's own operator needs each group's channels one after the other in memory, while convolutions keep all channels
    of a pixel together: the whole tensor is reordered before and after. Means over the pixels need no reorder, and the values
    per channel that are combined to groups are few. The mean is subtracted before squaring, so that a large mean costs no
    accuracy.
    """
    x, weight, bias = (node.input_value(i) for i in range(3))
    shape = list(node.get_input_shape(0))  # [N, C, *pixels]
    groups, eps = int(node.get_attributes()["num_groups"]), float(node.get_attributes()["epsilon"])
    pixels = np.arange(2, len(shape))
    grouped, wide = np.array([shape[0], groups, -1]), np.array([shape[0], shape[1], *[1] * len(pixels)])

    def to_groups(value: ov.Node) -> ov.Node:
        return ops.reshape(value, grouped, False)  # [N, G, C / G]

    def in_group(value: ov.Node) -> ov.Node:
        return ops.reduce_mean(value, np.array([2]), True)  # [N, G, 1]

    mean = ops.reduce_mean(x, pixels, True)
    deviation = ops.subtract(x, mean)
    variance = to_groups(ops.reduce_mean(ops.multiply(deviation, deviation), pixels, True))
    means = to_groups(mean)
    offset = true_offset = ops.subtract(means, in_group(means))  # of a channel's mean from its group's mean
    if corrected:  # where all pixels are alike, the deviations are nothing but the mean's rounding error
        error = to_groups(ops.reduce_mean(deviation, pixels, True))
        variance = ops.subtract(variance, ops.multiply(error, error))
        offset = ops.subtract(offset, in_group(error))
        true_offset = ops.add(offset, error)
    group_variance = in_group(ops.add(variance, ops.multiply(true_offset, true_offset)))
    # no single number (see model/runtime/shared_kernels.py), nor fewer rows: the device broadcasts [1, 2, 1] to [4, 2, 1] wrongly
    epsilon = ops.constant(np.full((shape[0], groups, 1), eps), x.get_element_type())
    half = ops.constant(np.array(-0.5), x.get_element_type())
    per_channel = np.array([1, groups, -1])
    scale = ops.multiply(ops.power(ops.add(group_variance, epsilon), half), ops.reshape(weight, per_channel, False))
    shift = ops.add(ops.multiply(offset, scale), ops.reshape(bias, per_channel, False))
    scale, shift = (ops.reshape(value, wide, False) for value in (scale, shift))
    result = ops.add(ops.multiply(deviation, scale), shift)
    for part in _between((x, weight, bias), result):
        part.set_friendly_name(f"{node.get_friendly_name()}, {part.get_name()}")  # by which types are chosen
    result.set_friendly_name(node.get_friendly_name())
    for reader in node.output(0).get_target_inputs():
        reader.replace_source_output(result.output(0))


def _between(sources: Sequence[ov.Output], result: ov.Node) -> list[ov.Node]:
    """All nodes that a result is computed by, after its sources."""
    found: dict[str, ov.Node] = {}
    known = [source.get_node().get_name() for source in sources]
    waiting = [result]
    while waiting:
        node = waiting.pop()
        if node.get_name() not in (*found, *known) and node.get_type_name() != "Constant":
            found[node.get_name()] = node
            waiting += [value.get_node() for value in node.input_values()]
    return [*found.values()]


#: What is reduced must be a multiple of this.
_MULTIPLE = 16


def decompose_odd_normalizations(model: ov.Model) -> None:
    """Decompose, in place, every MVN operator over a number of elements that is known and no multiple of 16.

    LayerNorm becomes an MVN operator; the networks of Stable Diffusion have multiples only.
    """
    for node in model.get_ordered_ops():
        if node.get_type_name() == "MVN" and _elements(node) % _MULTIPLE:
            _decompose_odd(node)


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


def _decompose_odd(node: ov.Node) -> None:
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
