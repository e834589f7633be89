"""Rewrites around faults of the CPU device, and one of OpenVINO's frontend, where another form of the same computation is right.

All were seen with OpenVINO 2026.4; those of convolutions, functions, quotients, reductions and sums have modules of their own.

Wrong numbers:

- Of one-dimensional values, an absolute value after a concatenation is moved in front of it, also for those who read the
  concatenation itself.
- A product with an infinite or another extreme constant, which the device merges with the constants of the arithmetic before it.
- A picture that is resized to a single pixel in some direction got the first pixel, as PyTorch did long ago; it takes the middle.
- Attention with as many heads as tokens: where the heads' transpose keeps the shape, the device may leave it out.
- Attention to constant keys, of which each row of a batch has its own, is wrong or not finite in bf16.
- Of a weight that is multiplied both as it is and transposed, or that two kinds of operators read, one packed form is kept for
  both.

Compiling these ends the process:

- attention whose result is read more than once,
- a group normalisation of two axes, less another value,
- elementwise arithmetic with, on one side, what the device computes as one operator (attention, or layers of two axes with
  arithmetic between) and, on the other, the result of other elementwise arithmetic: `b(a(x)) + x.exp()`.

Compiling these is refused:

- one of several results of an operator as a boolean,
- elements gathered from a slice: OpenVINO leaves the slice out, and then finds that the shapes do not fit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import openvino as ov
from openvino import opset13

from ov_backend.transformations.convolutions import avoid_faults_of_convolution
from ov_backend.transformations.functions import FUNCTIONS, avoid_faults_of_function
from ov_backend.transformations.nodes import Constants, hidden, replace, rolled
from ov_backend.transformations.quotients import avoid_faults_of_quotient
from ov_backend.transformations.reductions import (
    REDUCTIONS,
    as_reshape,
    avoid_faults_of_reduction,
    is_behind_a_reduction,
    of_infinities,
)
from ov_backend.transformations.sums_of_halves import ADDING_UP, add_up_in_float32

#: Operators whose weights the device packs, and what is folded into a weight before.
_CONVOLUTIONS = frozenset({"Convolution", "GroupConvolution", "ConvolutionBackpropData", "GroupConvolutionBackpropData"})
_PACKING = _CONVOLUTIONS | {"MatMul"}
_FOLDED = frozenset({"Convert", "Reshape", "Squeeze", "Transpose", "Unsqueeze"})
#: Of two factors between this and its reciprocal the product is neither 0 nor infinite.
_SMALL = np.float32(2.0**-62)
_FLOATS = frozenset({"f16", "bf16", "f32"})
#: What keeps a shape, but is no elementwise arithmetic.
_NOT_ELEMENTWISE = _PACKING | {"GroupNormalization", "MVN", "Parameter", "Roll"}
#: What may have several results, and what may read numbers as booleans.
_OF_SEVERAL = frozenset({"MaxPool", "Split", "TopK", "VariadicSplit"})
_OF_BOOLEANS = frozenset({"Convert", "LogicalAnd", "LogicalNot", "LogicalOr", "LogicalXor"})


def avoid_faults(model: ov.Model) -> None:
    """Rewrite, in place, what the CPU device would get wrong."""
    constants = Constants(model)
    for node in model.get_ordered_ops():
        kind = node.get_type_name()
        if node.get_input_size() > 1 and "auto_broadcast" in node.get_attributes():
            _apart_from_sequences(node, constants)
        if kind == "Abs" and len(node.get_output_shape(0)) == 1 and node.input_value(0).get_node().get_type_name() == "Concat":
            _behind_a_reshape(node)
        elif kind in REDUCTIONS:
            avoid_faults_of_reduction(node, constants)
        elif kind in ADDING_UP:
            add_up_in_float32(node)
        elif kind == "MaxPool" and node.get_output_element_type(0).is_real():
            of_infinities(node)
        elif kind == "GatherElements" and node.input_value(0).get_node().get_type_name() in ("Slice", "StridedSlice"):
            node.input(0).replace_source_output(rolled(node.input_value(0)).output(0))
        elif kind == "Transpose" and is_behind_a_reduction(node):
            as_reshape(node)
        elif kind in _CONVOLUTIONS:
            avoid_faults_of_convolution(node, constants)
        elif _swaps_equal_axes(node) and node.output(0) not in constants:
            _of_five_axes(node)
        elif _is_attention(node, constants) and _is_read_twice(node):
            _behind_a_roll(node)
        elif kind == "Softmax" and _is_of_constant_keys(node, constants):
            node.input(0).replace_source_output(rolled(node.input_value(0)).output(0))
        elif kind == "Interpolate" and node.get_attributes()["coordinate_transformation_mode"] == "pytorch_half_pixel":
            node.set_attribute("coordinate_transformation_mode", "half_pixel")
        elif kind == "GroupNormalization" and len(node.get_output_partial_shape(0)) == 2:
            _of_three_axes(node)
        elif kind in _OF_BOOLEANS and node.get_output_element_type(0).to_string() == "boolean":
            _compare_results(node)
        elif kind == "Multiply" and (side := _extreme_factor(node, constants)) is not None:
            node.input(side).replace_source_output(hidden(node.input_value(side), node.input_value(1 - side)).output(0))
        elif kind == "Divide" and (node.input_value(0) in constants) != (node.input_value(1) in constants):
            avoid_faults_of_quotient(node, constants)
        elif kind in FUNCTIONS:
            avoid_faults_of_function(node, constants)
        elif kind == "Constant" and len(node.get_output_shape(0)) > 1:
            _for_each_way(node)


def _for_each_way(weight: ov.Node) -> None:
    """Give a weight that is read in several ways memory of its own for each, by whose address the device knows what it packed."""
    first, ways = weight.output(0), dict[str, ov.Output]()
    readers = sorted(_readers(weight.output(0), ()), key=lambda each: each[1].get_node().get_friendly_name())
    for path, target in readers:
        reader = target.get_node()
        if reader.get_type_name() not in _PACKING:
            continue
        attributes = reader.get_attributes()
        flags = [f"{name}={attributes[name]}" for name in ("transpose_a", "transpose_b") if name in attributes]
        steps = [f"{node.get_type_name()} {_fixed(node)}" for node in path]
        way = " ".join([*steps, reader.get_type_name(), str(target.get_index()), *flags])
        if not ways:
            ways[way] = first
        elif way not in ways:
            ways[way] = _copied(weight, path, len(ways))
        if ways[way] is not first:
            target.replace_source_output(ways[way])


def _readers(output: ov.Output, path: tuple[ov.Node, ...]) -> Iterator[tuple[tuple[ov.Node, ...], ov.Input]]:
    """What reads a weight in the end, each with the operators on the way that are folded into it."""
    for target in output.get_target_inputs():
        reader = target.get_node()
        if reader.get_type_name() in _FOLDED and target.get_index() == 0:
            yield from _readers(reader.output(0), (*path, reader))
        else:
            yield path, target


def _copied(weight: ov.Node, path: Iterable[ov.Node], number: int) -> ov.Output:
    """A copy of a weight in memory of its own, behind copies of the operators on the way."""
    node = ov.op.Constant(weight.get_tensor_view(), shared_memory=False)
    node.set_friendly_name(f"{weight.get_friendly_name()}, copy {number}")
    for step in path:
        kind = step.get_type_name().lower()
        others = [step.input_value(i) for i in range(1, step.get_input_size())]
        if kind == "convert":
            node = opset13.convert(node, step.get_output_element_type(0))
        elif kind == "reshape":
            node = opset13.reshape(node, *others, step.get_attributes()["special_zero"])
        else:
            node = getattr(opset13, kind)(node, *others)
    return node.output(0)


def _fixed(node: ov.Node) -> str:
    """The order of a transpose, the shape of a reshape."""
    others = [node.input_value(i).get_node() for i in range(1, node.get_input_size())]
    return " ".join(str(other.data.tolist()) for other in others if other.get_type_name() == "Constant")


def _behind_a_reshape(node: ov.Node) -> None:
    shape = list(node.get_output_shape(0))
    row = opset13.reshape(node.input_value(0), np.array([1, *shape]), False)
    replace(node, opset13.reshape(opset13.abs(row), np.array(shape), False))



def _compare_results(node: ov.Node) -> None:
    """Have a node that reads numbers as booleans compare them with 0 where they are one of several results."""
    for port in node.inputs():
        value = port.get_source_output()
        if value.get_node().get_type_name() in _OF_SEVERAL and value.get_element_type().to_string() != "boolean":
            zero = ov.op.Constant(value.get_element_type(), ov.Shape([]), [0])
            port.replace_source_output(opset13.not_equal(value, zero).output(0))


def _extreme_factor(node: ov.Node, constants: Constants) -> int | None:
    """The side of a product that is a constant which may become infinite, or 0, together with another constant."""
    sides = [side for side in (0, 1) if node.input_value(side) in constants]
    if len(sides) != 1 or not node.get_output_element_type(0).is_real():
        return None
    factor = node.input_value(sides[0]).get_node()
    while factor.get_type_name() in ("Convert", "ConvertLike"):
        factor = factor.input_value(0).get_node()
    if factor.get_type_name() != "Constant" or factor.get_output_element_type(0).to_string() not in _FLOATS:
        return None
    size = np.abs(factor.get_data(dtype=np.float32))
    return sides[0] if (((size >= 1 / _SMALL) | (size <= _SMALL)) & (size > 0)).any() else None


def _swaps_equal_axes(node: ov.Node) -> bool:
    """Whether a node swaps the second and the third of four axes, which are equally long."""
    if node.get_type_name() != "Transpose":
        return False
    order, shape = node.input_value(1).get_node(), node.get_output_partial_shape(0)
    if order.get_type_name() != "Constant" or not shape.is_static or order.data.tolist() != [0, 2, 1, 3]:
        return False
    return shape[1] == shape[2] and shape[1] != 1


def _is_attention(node: ov.Node, constants: Constants) -> bool:
    """Whether a node is attention, or a product of matrices with weights that a softmax made."""
    if node.get_type_name() != "MatMul":
        return bool(node.get_type_name() == "ScaledDotProductAttention")
    source = _source(node, constants)
    return source is not None and source.get_type_name() == "Softmax"


def _is_of_constant_keys(node: ov.Node, constants: Constants) -> bool:
    """Whether a softmax is of products with constants, of which each row of a batch has its own."""
    source = _source(node, constants)
    if source is None or source.get_type_name() != "MatMul":
        return False
    return source.input_value(1) in constants and len(source.get_input_partial_shape(1)) > 2


def _source(node: ov.Node, constants: Constants) -> ov.Node | None:
    """The layer or softmax that a node's first input comes from, by arithmetic and changes of shape; None if there is none."""
    node = node.input_value(0).get_node()
    while node.get_type_name() not in _PACKING | {"Softmax"}:
        values = [value for value in node.input_values() if value not in constants]
        if not values:
            return None
        node = values[0].get_node()
    return node


def _is_read_twice(node: ov.Node) -> bool:
    """Whether a result, or what is computed of it before the next layer, has more than one reader."""
    while node.get_type_name() != "Result" and node.get_output_size() == 1:
        readers = [each for each in node.output(0).get_target_inputs() if each.get_node().get_type_name() != "ShapeOf"]
        if len(readers) != 1:
            return len(readers) > 1
        node = readers[0].get_node()
        if node.get_type_name() in _PACKING:
            return False
    return False


def _behind_a_roll(node: ov.Node) -> None:
    """Have all readers of a value read it rolled by nothing, which the device computes by itself."""
    readers = node.output(0).get_target_inputs()
    value = rolled(node.output(0))
    for reader in readers:
        reader.replace_source_output(value.output(0))


def _apart_from_sequences(node: ov.Node, constants: Constants) -> None:
    """Have elementwise arithmetic read the end of a sequence by a roll, where it also reads the result of other arithmetic."""
    ports = [port for port in node.inputs() if port.get_source_output() not in constants]
    for port in ports:
        end = port.get_source_output()
        others = [other.get_source_output().get_node() for other in ports if other.get_source_output() != end]
        if any(_meets(other, end.get_node(), constants) for other in others) and _ends_a_sequence(end, constants):
            port.replace_source_output(rolled(end).output(0))


def _meets(node: ov.Node, end: ov.Node, constants: Constants) -> bool:
    """Whether a node is elementwise arithmetic and not of the value itself, which the device keeps in order."""
    if not _is_elementwise(node, constants):
        return False
    return all(each.get_name() != end.get_name() for each in _through_arithmetic(node, constants))


def _ends_a_sequence(output: ov.Output, constants: Constants) -> bool:
    """Whether the device may compute a value, with the layers before it, as one operator that it adds nothing to."""
    if not output.get_element_type().is_real():
        return False
    layers = list(_through_arithmetic(output.get_node(), constants))
    if any(_is_attention(layer, constants) for layer in layers):
        return True
    if len(output.get_partial_shape()) != 2:
        return False
    sources = [layer.input_value(0).get_node() for layer in layers if _is_of_two_axes(layer, constants)]
    return any(_is_of_two_axes(layer, constants) for source in sources for layer in _through_arithmetic(source, constants))


def _is_of_two_axes(node: ov.Node, constants: Constants) -> bool:
    """Whether a node is a product of a matrix with a constant."""
    return node.get_type_name() == "MatMul" and node.input_value(1) in constants and len(node.get_output_partial_shape(0)) == 2


def _through_arithmetic(node: ov.Node, constants: Constants) -> Iterator[ov.Node]:
    """A node and all that it is computed of by elementwise arithmetic and changes of shape, up to the layers before them."""
    waiting, seen = [node], set[str]()
    while waiting:
        node = waiting.pop()
        if node.get_name() in seen:
            continue
        seen.add(node.get_name())
        yield node
        kind = node.get_type_name()
        if kind in _FOLDED or (kind != "Swish" and _is_elementwise(node, constants)):
            waiting += [value.get_node() for value in node.input_values() if value not in constants]


def _is_elementwise(node: ov.Node, constants: Constants) -> bool:
    """Whether a node is elementwise arithmetic: it broadcasts, or its only value that is no constant keeps its shape."""
    if node.get_type_name() in _NOT_ELEMENTWISE or node.get_output_size() != 1:
        return False
    values = [value for value in node.input_values() if value not in constants]
    if len(values) == 1 and values[0].get_partial_shape() == node.get_output_partial_shape(0):
        return True
    return bool(values) and "auto_broadcast" in node.get_attributes()


def _of_five_axes(node: ov.Node) -> None:
    """A transpose in four axes is dropped beside attention where the result has the same shape."""
    last = np.array([4])
    transposed = opset13.transpose(opset13.unsqueeze(node.input_value(0), last), np.array([0, 2, 1, 3, 4]))
    replace(node, opset13.squeeze(transposed, last))


def _of_three_axes(node: ov.Node) -> None:
    attributes = node.get_attributes()
    value = opset13.unsqueeze(node.input_value(0), np.array([2]))
    scale, shift = node.input_value(1), node.input_value(2)
    normal = opset13.group_normalization(value, scale, shift, attributes["num_groups"], attributes["epsilon"])
    replace(node, opset13.squeeze(normal, np.array([2])))
