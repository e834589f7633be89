"""Group normalisation in the form that the CPU device computes fastest."""

from __future__ import annotations

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
