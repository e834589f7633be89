"""Rewrites around faults of the CPU device, and one of OpenVINO's frontend, where another form of the same computation is right.

All were seen with OpenVINO 2026.4. ``RULES`` has those of the other modules too, and ``docs/reference/rewrites.md`` lists them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import openvino as ov
from openvino import opset13

from ov_backend.model.transformations import attention, convolutions, functions, reductions, weight_copies
from ov_backend.model.transformations.autocast_types import MOVES
from ov_backend.model.transformations.nodes import Constants, hidden, replace, rolled
from ov_backend.model.transformations.rule import Rule, apply_rules

#: Of two factors between this and its reciprocal the product is neither 0 nor infinite.
_SMALL = np.float32(2.0**-62)
_FLOATS = frozenset({"f16", "bf16", "f32"})
_CASTS, _SUMS = frozenset({"Convert", "ConvertLike"}), frozenset({"Add", "Subtract"})
_LINEAR = _SUMS | {"Multiply", "Divide"}


def _has_one_axis(node: ov.Node, constants: Constants) -> bool:
    return len(node.get_output_partial_shape(0)) == 1


def abs_of_two_axes(node: ov.Node, constants: Constants) -> None:
    """Compute the absolute value of one row of two axes."""
    first = np.array([0])
    replace(node, opset13.squeeze(opset13.abs(opset13.unsqueeze(node.input_value(0), first)), first))


def _is_of_a_slice(node: ov.Node, constants: Constants) -> bool:
    return node.input_value(0).get_node().get_type_name() in ("Slice", "StridedSlice")


def roll_slice(node: ov.Node, constants: Constants) -> None:
    """Have elements gathered from a slice that is rolled by nothing."""
    node.input(0).replace_source_output(rolled(node.input_value(0)).output(0))


def _is_as_pytorch_was(node: ov.Node, constants: Constants) -> bool:
    return bool(node.get_attributes()["coordinate_transformation_mode"] == "pytorch_half_pixel")


def resize_to_the_middle(node: ov.Node, constants: Constants) -> None:
    """Have a single pixel be the middle one, as all others are."""
    node.set_attribute("coordinate_transformation_mode", "half_pixel")


def _takes_other_pixels(node: ov.Node, constants: Constants) -> bool:
    attributes = node.get_attributes()
    kind = attributes["mode"], attributes["coordinate_transformation_mode"], attributes["nearest_mode"]
    shapes = node.get_input_partial_shape(0), node.get_output_partial_shape(0)
    if kind != ("nearest", "asymmetric", "floor") or any(shape.is_dynamic for shape in shapes):
        return False
    return any((_positions(size, of) != np.floor(_counted(size) / (size / of))).any() for _, size, of in _resized(node))


def gather_nearest(node: ov.Node, constants: Constants) -> None:
    """Take the pixels that PyTorch takes."""
    value = node.input_value(0)
    for axis, size, of in _resized(node):
        value = opset13.gather(value, _positions(size, of).astype(np.int64), np.int64(axis)).output(0)
    replace(node, value.get_node())


def _resized(node: ov.Node) -> list[tuple[int, np.float32, np.float32]]:
    """The axes that get another size, with the new size and the old one."""
    sizes = zip(node.get_output_shape(0), node.get_input_shape(0))
    return [(axis, np.float32(size), np.float32(of)) for axis, (size, of) in enumerate(sizes) if size != of]


def _positions(size: np.float32, of: np.float32) -> np.ndarray[Any, Any]:
    """Where the pixels come from, as ``nearest_neighbor_compute_source_index`` in PyTorch's UpSample.h computes it."""
    return np.minimum(np.floor(_counted(size) * (of / size)), of - 1)


def _counted(size: np.float32) -> np.ndarray[Any, Any]:
    return np.arange(int(size), dtype=np.float32)


def _has_two_axes(node: ov.Node, constants: Constants) -> bool:
    return len(node.get_output_partial_shape(0)) == 2


def group_norm_in_3d(node: ov.Node, constants: Constants) -> None:
    """Normalise three axes, of which the last has the length one."""
    attributes = node.get_attributes()
    value = opset13.unsqueeze(node.input_value(0), np.array([2]))
    scale, shift = node.input_value(1), node.input_value(2)
    normal = opset13.group_normalization(value, scale, shift, attributes["num_groups"], attributes["epsilon"])
    replace(node, opset13.squeeze(normal, np.array([2])))


def _is_boolean(node: ov.Node, constants: Constants) -> bool:
    return bool(node.get_output_element_type(0).to_string() == "boolean")


def compare_with_zero(node: ov.Node, constants: Constants) -> None:
    """Compare with 0 what a node reads as a boolean."""
    for port in node.inputs():
        value, kind = port.get_source_output(), port.get_element_type()
        if kind.to_string() != "boolean":
            port.replace_source_output(opset13.not_equal(value, ov.op.Constant(kind, ov.Shape([]), [0])).output(0))


def _has_no_axes(node: ov.Node, constants: Constants) -> bool:
    return bool(node.get_output_partial_shape(0) == ov.PartialShape([]))


def reshape_to_no_axes(node: ov.Node, constants: Constants) -> None:
    """Take the single number as it is."""
    replace(node, opset13.reshape(node.input_value(0), np.array([], dtype=np.int64), False))


def _compares_floats(node: ov.Node, constants: Constants) -> bool:
    return bool(node.get_input_element_type(0).is_real())


def swap_sides(node: ov.Node, constants: Constants) -> None:
    """Ask whether the second value is less."""
    compare = opset13.less if node.get_type_name() == "Greater" else opset13.less_equal
    replace(node, compare(node.input_value(1), node.input_value(0)))


def _has_an_extreme_factor(node: ov.Node, constants: Constants) -> bool:
    return _extreme_factor(node, constants) is not None


def hide_extreme_factor(node: ov.Node, constants: Constants) -> None:
    """Have the device not see that a factor is constant."""
    side = _extreme_factor(node, constants)
    if side is not None:
        node.input(side).replace_source_output(hidden(node.input_value(side), node.input_value(1 - side)).output(0))


def _extreme_factor(node: ov.Node, constants: Constants) -> int | None:
    """The side of a product that is a constant which may become infinite, or 0, together with another constant."""
    sides = [side for side in (0, 1) if node.input_value(side) in constants]
    if len(sides) != 1 or not node.get_output_element_type(0).is_real():
        return None
    factor = node.input_value(sides[0]).get_node()
    while factor.get_type_name() in _CASTS:
        factor = factor.input_value(0).get_node()
    if factor.get_type_name() != "Constant" or factor.get_output_element_type(0).to_string() not in _FLOATS:
        return None
    size = np.abs(factor.get_data(dtype=np.float32))
    return sides[0] if (((size >= 1 / _SMALL) | (size <= _SMALL)) & (size > 0)).any() else None


def _gets_two_constants(node: ov.Node, constants: Constants) -> bool:
    """Whether a constant is added to a product with a weight that has another one."""
    return any(value in constants for value in node.input_values()) and bool(_second_constants(node, constants))


def hide_second_constants(node: ov.Node, constants: Constants) -> None:
    """Have the device not see that the second one is constant."""
    for port in _second_constants(node, constants):
        sum_ = port.get_node()
        port.replace_source_output(hidden(port.get_source_output(), sum_.input_value(1 - port.get_index())).output(0))


def _second_constants(product: ov.Node, constants: Constants) -> list[ov.Input]:
    """The inputs that add another constant to what is made of a product by moves, conversions and arithmetic with constants."""
    found: dict[str, ov.Input] = {}
    seen, front = set[tuple[str, bool]](), [(product, False)]
    while front:
        node, is_sum = front.pop()
        for port in (port for output in node.outputs() for port in output.get_target_inputs()):
            reader = port.get_node()
            kind, name = reader.get_type_name(), reader.get_name()
            if kind in _LINEAR:
                other = reader.input(1 - port.get_index())
                if other.get_source_output() not in constants:
                    continue
                if kind in _SUMS and is_sum:
                    found[name] = other
                    continue
            elif kind not in _CASTS | MOVES:
                continue
            state = name, is_sum or kind in _SUMS
            if state not in seen:
                seen.add(state)
                front.append((reader, state[1]))
    return list(found.values())


_OWN = (
    Rule(
        "two constants that are added to a product with a weight become one, which is rounded to bfloat16 there; where the types"
        " differ the first is left out",
        frozenset({"MatMul"}),
        _gets_two_constants,
        hide_second_constants,
    ),
    Rule(
        "of one axis, an absolute value of a constant that is broadcast is left out, and one after a concatenation is moved"
        " in front of it, also for those who read the concatenation itself",
        frozenset({"Abs"}),
        _has_one_axis,
        abs_of_two_axes,
    ),
    Rule(
        "elements gathered from a slice are refused: the slice is left out, and then the shapes do not fit",
        frozenset({"GatherElements"}),
        _is_of_a_slice,
        roll_slice,
    ),
    Rule(
        "a picture that is resized to a single pixel in some direction gets the first pixel, as in PyTorch long ago, not"
        " the middle",
        frozenset({"Interpolate"}),
        _is_as_pytorch_was,
        resize_to_the_middle,
    ),
    Rule(
        "in the mode nearest a pixel comes from a neighbour where the quotient of the sizes is rounded",
        frozenset({"Interpolate"}),
        _takes_other_pixels,
        gather_nearest,
    ),
    Rule(
        "the process ends at a group normalisation of two axes, less another value",
        frozenset({"GroupNormalization"}),
        _has_two_axes,
        group_norm_in_3d,
    ),
    Rule(
        "the process ends where an input of the graph, as a value without axes, is a result; one that is tiled is undefined",
        frozenset({"Broadcast", "Tile"}),
        _has_no_axes,
        reshape_to_no_axes,
    ),
    Rule(
        "NaN as a boolean is false, and one of several results of an operator as a boolean is refused",
        frozenset({"Convert", "LogicalAnd", "LogicalNot", "LogicalOr", "LogicalXor"}),
        _is_boolean,
        compare_with_zero,
    ),
    Rule("NaN is greater than all numbers", frozenset({"Greater", "GreaterEqual"}), _compares_floats, swap_sides),
    Rule(
        "a product with an infinite or another extreme constant is merged with the constants of the arithmetic before it",
        frozenset({"Multiply"}),
        _has_an_extreme_factor,
        hide_extreme_factor,
    ),
)
#: All rules, in the order in which they are tried for each node.
RULES: tuple[Rule, ...] = (
    *attention.RULES,
    *reductions.RULES,
    *convolutions.RULES,
    *functions.RULES,
    *weight_copies.RULES,
    *_OWN,
)


def avoid_faults(model: ov.Model) -> None:
    """Rewrite, in place, what the CPU device would get wrong."""
    apply_rules(model, RULES)
