"""Group normalisation in the form that the CPU device computes fastest."""

from __future__ import annotations

import numpy as np
import openvino as ov
import openvino.opset13 as ops


def spread_group_norms(model: ov.Model, corrected: bool) -> None:
    """Rewrite, in place, every group normalisation of pixels as operations on single channels.

    Args:
        model: with its weights bound.
        corrected: correct sums over many pixels for their own rounding, as f32 needs it.
    """
    for node in model.get_ordered_ops():
        if node.get_type_name() == "GroupNormalization" and _static_spatial(node):
            _spread(node, corrected)


def _static_spatial(node: ov.Node) -> bool:
    shape = node.get_input_partial_shape(0)
    return shape.is_static and len(shape) > 2


def _spread(node: ov.Node, corrected: bool) -> None:
    """Group normalisation from the means and variances of single channels.

    The device's own form needs each group's channels one after the other in memory, while convolutions keep all channels
    of a pixel together: two reorders of the whole tensor, before and after. Means over the pixels need none, and what is
    put together to groups afterwards is tiny. Deviations are taken from the mean before they are squared, as nothing may
    be lost where the mean is large.
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
    offset = true_offset = ops.subtract(means, in_group(means))  # of a channel's mean from its group's
    if corrected:  # a sum over many pixels is off by its rounding, which is all there is where they are alike
        rest = to_groups(ops.reduce_mean(deviation, pixels, True))
        variance = ops.subtract(variance, ops.multiply(rest, rest))
        offset = ops.subtract(offset, in_group(rest))
        true_offset = ops.add(offset, rest)
    spread = in_group(ops.add(variance, ops.multiply(true_offset, true_offset)))
    epsilon, half = (ops.constant(np.array(value), x.get_element_type()) for value in (eps, -0.5))
    per_channel = np.array([1, groups, -1])
    scale = ops.multiply(ops.power(ops.add(spread, epsilon), half), ops.reshape(weight, per_channel, False))
    shift = ops.add(ops.multiply(offset, scale), ops.reshape(bias, per_channel, False))
    scale, shift = (ops.reshape(value, wide, False) for value in (scale, shift))
    result = ops.add(ops.multiply(deviation, scale), shift)
    result.set_friendly_name(node.get_friendly_name())
    for target in node.output(0).get_target_inputs():
        target.replace_source_output(result.output(0))
