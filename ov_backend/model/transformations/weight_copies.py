"""Weights that are read in several ways, of which the CPU device (OpenVINO 2026.4) packs one only."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import openvino as ov
from openvino import opset13

from ov_backend.model.transformations.nodes import Constants
from ov_backend.model.transformations.rule import Rule

#: Operators whose weights the device packs, and what is folded into a weight before.
CONVOLUTIONS = frozenset({"Convolution", "GroupConvolution", "ConvolutionBackpropData", "GroupConvolutionBackpropData"})
PACKING = CONVOLUTIONS | {"MatMul"}
FOLDED = frozenset({"Convert", "Reshape", "Squeeze", "Transpose", "Unsqueeze"})


def _is_weight(node: ov.Node, constants: Constants) -> bool:
    return len(node.get_output_shape(0)) > 1


def copy_weight_per_packing(weight: ov.Node, constants: Constants) -> None:
    """Give a weight that is read in several ways memory of its own for each, by whose address the device knows what it packed."""
    first, ways = weight.output(0), dict[str, ov.Output]()
    readers = sorted(_readers(weight.output(0), ()), key=lambda each: each[1].get_node().get_friendly_name())
    for path, target in readers:
        reader = target.get_node()
        if reader.get_type_name() not in PACKING:
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
        if reader.get_type_name() in FOLDED and target.get_index() == 0:
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


RULES = (
    Rule(
        "of a weight that is multiplied both as it is and transposed, or that two kinds of operators read, one packed"
        " form is kept for both",
        frozenset({"Constant"}),
        _is_weight,
        copy_weight_per_packing,
    ),
)
