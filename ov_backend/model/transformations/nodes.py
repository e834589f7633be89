"""What rewrites of a model share: which outputs are constant or packed, replacing a node, and keeping two nodes apart."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import openvino as ov
from openvino import opset13

#: Operators whose second input is packed at compile time, with the most dimensions of a weight for which that was observed.
_PACKING = {"Convolution": 5, "GroupConvolution": 6, "ConvolutionBackpropData": 5, "MatMul": 2}
#: Operators on a weight that are folded into it, so that a new constant is packed.
_FOLDED = {"Convert", "Reshape", "Squeeze", "Transpose", "Unsqueeze"}


class Constants:
    """The outputs that the device computes once, of constants alone."""

    def __init__(self, model: ov.Model) -> None:
        self._names = set[str]()
        for node in model.get_ordered_ops():
            # Where a value's type is another's, that one's numbers do not count.
            sources = node.input_values()[:1] if node.get_type_name() == "ConvertLike" else node.input_values()
            if sources and all(source in self for source in sources):
                self._names.add(node.get_name())

    def __contains__(self, output: ov.Output) -> bool:
        node = output.get_node()
        return node.get_type_name() == "Constant" or node.get_name() in self._names


def replace(node: ov.Node, new: ov.Node) -> None:
    """Have all readers of a node read another one, which gets its name."""
    new.set_friendly_name(node.get_friendly_name())
    for target in node.output(0).get_target_inputs():
        target.replace_source_output(new.output(0))


def rolled(output: ov.Output) -> ov.Node:
    """A value rolled by nothing, past which no layer is fused; arithmetic with one number is moved past it, though."""
    zero = opset13.constant(np.zeros(1, np.int64))
    return opset13.roll(output, zero, zero)


def roll_for_readers(node: ov.Node) -> None:
    """Have all readers of a node read it rolled by nothing."""
    readers = node.output(0).get_target_inputs()
    value = rolled(node.output(0))
    for reader in readers:
        reader.replace_source_output(value.output(0))


def hidden(constant: ov.Output, value: ov.Output) -> ov.Node:
    """A constant that is chosen by a value: both choices are the constant, but the device does not see it, and merges nothing."""
    zero = ov.op.Constant(value.get_element_type(), ov.Shape([]), [0])
    return opset13.select(opset13.greater(value, zero), constant, constant)


def is_packed(weight: ov.Node) -> bool:
    """Whether the device packs a weight for everything that reads it."""
    return all(
        port == 1 and len(reader.get_input_partial_shape(1)) <= _PACKING.get(reader.get_type_name(), 0)
        for reader, port in _readers(weight)
    )


def _readers(node: ov.Node) -> Iterator[tuple[ov.Node, int]]:
    """The operators that read a weight, or what is folded into it, each with the number of its input."""
    for target in node.output(0).get_target_inputs():
        reader = target.get_node()
        if reader.get_type_name() in _FOLDED and target.get_index() == 0:
            yield from _readers(reader)
        else:
            yield reader, target.get_index()
