"""Transposes and repetitions that get an input of their own."""

from __future__ import annotations

import numpy as np
import openvino as ov
import openvino.opset13 as ops

#: Operators that give the same memory another shape.
_SHAPES = frozenset({"Reshape", "Squeeze", "Unsqueeze"})
#: Operators that repeat a value.
_REPEATS = frozenset({"Broadcast", "Tile"})
#: Those that are computed once of a weight.
_FOLDED = _SHAPES | {"Convert", "Transpose"}


def copy_shared_inputs(model: ov.Model) -> None:
    """Copy, in place, what a transpose reads if others read it too, in another shape or not, or if a transpose has made it.

    And what a repetition for a product of matrices reads, if others read it too.

    Where a transpose feeds a convolution, the CPU device (OpenVINO 2026.4) takes the untransposed memory for channels that
    stand last, and does not see that another reader may overwrite it: ``y`` that goes to a transpose and a convolution, and to a
    reshape and a product, gave a wrong convolution; ``y`` that goes to a concatenation, and by a reshape and a transpose to a
    matrix product, a wrong product. Where a convolution is transposed, reshaped and transposed, the device takes both
    transposes for one. Where pooling is read by arithmetic, and repeated for a product with that, the product was wrong. A roll
    by nothing copies, and is the one copy that the device does not remove.
    """
    for node in model.get_ordered_ops():
        source = node.input_value(0) if node.get_type_name() == "Transpose" or _is_repeated_for_a_product(node) else None
        if source is None or _is_weight(source):
            continue
        if _is_shared(source) or (node.get_type_name() == "Transpose" and _is_transposed(source)):
            zero = ops.constant(np.zeros(1, np.int64))
            node.input(0).replace_source_output(ops.roll(source, zero, zero).output(0))


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
    """Whether an output is another shape of a transposed one."""
    node = _behind(output, _SHAPES)
    return node is not output.get_node() and node.get_type_name() == "Transpose"


def _is_weight(output: ov.Output) -> bool:
    """Whether the device computes an output once, when it compiles."""
    return _behind(output, _FOLDED).get_type_name() == "Constant"


def _behind(output: ov.Output, kinds: frozenset[str]) -> ov.Node:
    """The node that an output comes from, through operators of these kinds."""
    node = output.get_node()
    while node.get_type_name() in kinds:
        node = node.input_value(0).get_node()
    return node
