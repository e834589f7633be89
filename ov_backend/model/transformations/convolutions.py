"""Convolutions that the CPU device (OpenVINO 2026.4) gets wrong."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import openvino as ov
from openvino import opset13

from ov_backend.model.transformations.nodes import Constants, replace, roll_for_readers, rolled
from ov_backend.model.transformations.rule import Rule
from ov_backend.model.transformations.weight_copies import CONVOLUTIONS


def _is_of_a_product_by_pixels(convolution: ov.Node, constants: Constants) -> bool:
    """Whether a convolution reads a product with, or a quotient by, constants of which one has several numbers for a channel."""
    node = convolution.input_value(0).get_node()
    axes = len(node.get_output_partial_shape(0)) - 2
    while node.get_type_name() in ("Multiply", "Divide"):
        constant = [value in constants for value in node.input_values()]
        factors = [value.get_partial_shape() for value, is_one in zip(node.input_values(), constant) if is_one]
        if any(not shape.is_static or math.prod(shape.to_shape()[-axes:]) > 1 for shape in factors):
            return True
        if len(factors) != 1:
            return False
        node = node.input_value(constant.index(False)).get_node()
    return False


def roll_product_by_pixels(node: ov.Node, constants: Constants) -> ov.Node:
    """Have a convolution read a product rolled by nothing."""
    node.input(0).replace_source_output(rolled(node.input_value(0)).output(0))
    return node


def _has_steps_of_pixels(node: ov.Node, constants: Constants) -> bool:
    """Whether a convolution of single pixels leaves pixels out."""
    strides = node.get_attributes()["strides"]
    return bool(max(strides) > 1 and all(size == 1 for size in [*node.get_input_partial_shape(1)][-len(strides) :]))


def step_before_convolution(node: ov.Node, constants: Constants) -> None:
    """Pad, leave pixels out, and then compute every pixel that is left."""
    attributes, padded = node.get_attributes(), node.input_value(0)
    pixels, steps = len(attributes["strides"]), np.array(attributes["strides"])
    begin, end = ([0, 0, *attributes[name]] for name in ("pads_begin", "pads_end"))
    if any([*begin, *end]):
        zero = ov.op.Constant(node.get_input_element_type(0), ov.Shape([]), [0])
        padded = opset13.pad(padded, np.array(begin), np.array(end), "constant", zero)
    start, stop, axes = np.zeros(pixels, np.int64), np.full(pixels, np.iinfo(np.int64).max), np.arange(2, 2 + pixels)
    left = opset13.slice(padded, start, stop, steps, axes)
    ones, none = [1] * pixels, [0] * pixels
    replace(node, _kind_of(node)(left, node.input_value(1), ones, none, none, ones))


def _is_narrow(node: ov.Node, constants: Constants) -> bool:
    """Whether a convolution of one channel takes steps along the last axis, and yet finds place for one only."""
    strides, width = node.get_attributes()["strides"], node.get_output_partial_shape(0)[-1]
    channels = node.get_input_partial_shape(1)[-1 - len(strides)]
    return bool(channels == 1 and width == 1 and strides[-1] > 1)


def convolve_whole_rows(node: ov.Node, constants: Constants) -> None:
    """Compute whole rows, and take the first pixel of each."""
    attributes, sources = node.get_attributes(), node.input_values()
    strides, pads = [*attributes["strides"][:-1], 1], (attributes["pads_begin"], attributes["pads_end"])
    rows = _kind_of(node)(*sources, strides, *pads, attributes["dilations"])
    replace(node, opset13.slice(rows, np.array([0]), np.array([1]), np.array([1]), np.array([-1])))


def _may_leave_pixels_out(node: ov.Node, constants: Constants) -> bool:
    """Whether a transposed convolution may have pixels to which its kernel does not come."""
    attributes, steps = node.get_attributes(), node.get_attributes()["strides"]
    sizes = [*node.get_input_partial_shape(1)][-len(steps) :]
    axes = zip(sizes, steps, attributes["dilations"], attributes["output_padding"], attributes["pads_end"])
    return any(size.get_min_length() < step or apart > 1 or more > end for size, step, apart, more, end in axes)


def roll_transposed_convolution(node: ov.Node, constants: Constants) -> None:
    """Have all readers of a transposed convolution read it rolled by nothing."""
    roll_for_readers(node)


def _kind_of(node: ov.Node) -> Callable[..., ov.Node]:
    """What makes a convolution of the same kind."""
    return opset13.convolution if node.get_type_name() == "Convolution" else opset13.group_convolution


_FORWARD = frozenset({"Convolution", "GroupConvolution"})
RULES = (
    Rule(
        "a product with one number for each pixel is folded into the weight of a convolution behind it, as if the number"
        " were for the weight's own pixel",
        CONVOLUTIONS,
        _is_of_a_product_by_pixels,
        roll_product_by_pixels,
    ),
    Rule(
        "the steps of a convolution of single pixels are moved in front of the arithmetic before it: also past its own"
        " padding and that of a convolution before it, and of a split they take the first part",
        _FORWARD,
        _has_steps_of_pixels,
        step_before_convolution,
    ),
    Rule(
        "a convolution of one channel, or of groups of one, whose result is one pixel wide, with steps along that axis,"
        " is wrong",
        _FORWARD,
        _is_narrow,
        convolve_whole_rows,
    ),
    Rule(
        "in bf16, pixels of a transposed convolution to which its kernel does not come are 0 whatever arithmetic follows it",
        CONVOLUTIONS - _FORWARD,
        _may_leave_pixels_out,
        roll_transposed_convolution,
    ),
)
