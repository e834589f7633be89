"""Transposes and repetitions that get an input of their own."""

from __future__ import annotations

import openvino as ov

from ov_backend.model.transformations.nodes import rolled

#: Operators that give the same memory another shape.
_SHAPES = frozenset({"Reshape", "Squeeze", "Unsqueeze"})
#: Operators that repeat a value.
_REPEATS = frozenset({"Broadcast", "Tile"})
#: Those that are computed once of a weight.
_FOLDED = _SHAPES | {"Convert", "Transpose"}
#: Layers whose results the device never stores with channels last.
_ROWS = frozenset({"MatMul", "ScaledDotProductAttention"})


def copy_shared_inputs(model: ov.Model) -> None:
    """Copy, in place, what a transpose reads if others read it too, in another shape or not, or if a transpose has made it.

    And what a repetition for a product of matrices reads, if others read it too.

    Where a transpose feeds a convolution, the CPU device (OpenVINO 2026.4) takes the untransposed memory for channels that
    stand last, and does not see that another reader may overwrite it: ``y`` that goes to a transpose and a convolution, and to a
    reshape and a product, gave a wrong convolution; ``y`` that goes to a concatenation, and by a reshape and a transpose to a
    matrix product, a wrong product. Where a convolution is transposed, reshaped and transposed, the device takes both
    transposes for one; not so for a product of matrices, such as the heads of attention, where the copy would cost a third of a
    step. Where pooling is read by arithmetic, and repeated for a product with that, the product was wrong. A roll by nothing
    copies, and is the one copy that the device does not remove; it is slow, so the usual networks must not need one.
    """
    for node in model.get_ordered_ops():
        source = node.input_value(0) if node.get_type_name() == "Transpose" or _is_repeated_for_a_product(node) else None
        if source is None or _is_weight(source):
            continue
        if _is_shared(source) or (node.get_type_name() == "Transpose" and _is_transposed(source)):
            node.input(0).replace_source_output(rolled(source).output(0))


def _is_repeated_for_a_product(node: ov.Node) -> bool:
    """Whether a node repeats a value that goes to a product of matrices, in another shape or not."""
    if node.get_type_name() not in _REPEATS or node.get_output_partial_shape(0) == node.get_input_partial_shape(0):
        return False
    waiting = [node]
    while waiting:
        for target in waiting.pop().output(0).get_target_inputs():
            reader = target.get_node()
            if reader.get_type_name() == "MatMul":
                return True
            if reader.get_type_name() in _SHAPES | _REPEATS | {"Transpose"}:
                waiting.append(reader)
    return False


def _is_shared(output: ov.Output) -> bool:
    """Whether others read an output too, or what it is another shape of."""
    while len(output.get_target_inputs()) == 1 and output.get_node().get_type_name() in _SHAPES:
        output = output.get_node().input_value(0)
    return len(output.get_target_inputs()) > 1


def _is_transposed(output: ov.Output) -> bool:
    """Whether an output is another shape of a transposed one, which is not of :data:`_ROWS`."""
    node = _behind(output, _SHAPES)
    if node is output.get_node() or node.get_type_name() != "Transpose":
        return False
    return _behind_constants(node.input_value(0)).get_type_name() not in _ROWS


def _is_weight(output: ov.Output) -> bool:
    """Whether the device computes an output once, when it compiles."""
    return _behind(output, _FOLDED).get_type_name() == "Constant"


def _behind_constants(output: ov.Output) -> ov.Node:
    """The node that an output comes from, through changes of shape and sums and products with weights."""
    node = _behind(output, _SHAPES | {"Transpose"})
    while node.get_type_name() in ("Add", "Multiply"):
        others = [value for value in node.input_values() if not _is_weight(value)]
        if len(others) != 1:
            break
        node = _behind(others[0], _SHAPES | {"Transpose"})
    return node


def _behind(output: ov.Output, kinds: frozenset[str]) -> ov.Node:
    """The node that an output comes from, through operators of these kinds."""
    node = output.get_node()
    while node.get_type_name() in kinds:
        node = node.input_value(0).get_node()
    return node
