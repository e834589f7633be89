"""Attention, and layers in a sequence, that the CPU device (OpenVINO 2026.4) gets wrong or ends the process at."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import openvino as ov
from openvino import opset13

from ov_backend.model.transformations.nodes import Constants, replace, roll_for_readers, rolled
from ov_backend.model.transformations.rule import Rule
from ov_backend.model.transformations.weight_copies import FOLDED, PACKING

#: What keeps a shape, but is no elementwise arithmetic.
_NOT_ELEMENTWISE = PACKING | {"GroupNormalization", "MVN", "Parameter", "Roll"}


def transpose_in_5d(node: ov.Node, constants: Constants) -> None:
    """Transpose five axes, of which the last has the length one."""
    last = np.array([4])
    transposed = opset13.transpose(opset13.unsqueeze(node.input_value(0), last), np.array([0, 2, 1, 3, 4]))
    replace(node, opset13.squeeze(transposed, last))


def _swaps_equal_axes(node: ov.Node, constants: Constants) -> bool:
    """Whether a transpose swaps the second and the third of four axes, which are equally long."""
    if node.output(0) in constants:
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


def _is_attention_read_twice(node: ov.Node, constants: Constants) -> bool:
    return _is_attention(node, constants) and _is_read_twice(node)


def _is_of_constant_keys(node: ov.Node, constants: Constants) -> bool:
    """Whether a softmax is of products with constants, of which each row of a batch has its own."""
    source = _source(node, constants)
    if source is None or source.get_type_name() != "MatMul":
        return False
    return source.input_value(1) in constants and len(source.get_input_partial_shape(1)) > 2


def _source(node: ov.Node, constants: Constants) -> ov.Node | None:
    """The layer or softmax that a node's first input comes from, by arithmetic and changes of shape; None if there is none."""
    node = node.input_value(0).get_node()
    while node.get_type_name() not in PACKING | {"Softmax"}:
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
        if node.get_type_name() in PACKING:
            return False
    return False


def roll_attention(node: ov.Node, constants: Constants) -> None:
    """Have all readers of a value read it rolled by nothing, which the device computes by itself."""
    roll_for_readers(node)


def roll_keys(node: ov.Node, constants: Constants) -> ov.Node:
    """Have a softmax read the products with the keys rolled by nothing."""
    node.input(0).replace_source_output(rolled(node.input_value(0)).output(0))
    return node


def _reads_the_end_of_a_sequence(node: ov.Node, constants: Constants) -> bool:
    return _end_of_a_sequence(node, constants) is not None


def roll_the_end_of_a_sequence(node: ov.Node, constants: Constants) -> ov.Node:
    """Have elementwise arithmetic read the end of a sequence by a roll."""
    while (port := _end_of_a_sequence(node, constants)) is not None:
        port.replace_source_output(rolled(port.get_source_output()).output(0))
    return node


def _end_of_a_sequence(node: ov.Node, constants: Constants) -> ov.Input | None:
    """Where elementwise arithmetic reads the end of a sequence, if it also reads the result of other arithmetic."""
    if node.get_input_size() < 2 or "auto_broadcast" not in node.get_attributes():
        return None
    ports = [port for port in node.inputs() if port.get_source_output() not in constants]
    for port in ports:
        end = port.get_source_output()
        others = [other.get_source_output().get_node() for other in ports if other.get_source_output() != end]
        if any(_meets(other, end.get_node(), constants) for other in others) and _ends_a_sequence(end, constants):
            return port
    return None


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
        if kind in FOLDED or (kind != "Swish" and _is_elementwise(node, constants)):
            waiting += [value.get_node() for value in node.input_values() if value not in constants]


def _is_elementwise(node: ov.Node, constants: Constants) -> bool:
    """Whether a node is elementwise arithmetic: it broadcasts, or its only value that is no constant keeps its shape."""
    if node.get_type_name() in _NOT_ELEMENTWISE or node.get_output_size() != 1:
        return False
    values = [value for value in node.input_values() if value not in constants]
    if len(values) == 1 and values[0].get_partial_shape() == node.get_output_partial_shape(0):
        return True
    return bool(values) and "auto_broadcast" in node.get_attributes()


RULES = (
    Rule(
        "the process ends at elementwise arithmetic with, on one side, what the device computes as one operator"
        " (attention, or layers of two axes with arithmetic between) and, on the other, the result of other elementwise"
        " arithmetic: `b(a(x)) + x.exp()`",
        frozenset(),
        _reads_the_end_of_a_sequence,
        roll_the_end_of_a_sequence,
    ),
    Rule(
        "of attention with as many heads as tokens, whose heads' transpose keeps the shape, the transpose may be left out",
        frozenset({"Transpose"}),
        _swaps_equal_axes,
        transpose_in_5d,
    ),
    Rule(
        "the process ends at attention whose result is read more than once",
        frozenset({"MatMul", "ScaledDotProductAttention"}),
        _is_attention_read_twice,
        roll_attention,
    ),
    Rule(
        "attention to constant keys, of which each row of a batch has its own, is wrong or not finite in bf16",
        frozenset({"Softmax"}),
        _is_of_constant_keys,
        roll_keys,
    ),
)
