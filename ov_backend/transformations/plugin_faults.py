"""Rewrites around faults of the CPU device, where another form of the same computation is right.

All were seen with OpenVINO 2026.4. Of one-dimensional values, an absolute value after a concatenation is moved in front of it,
also for those who read the concatenation itself. A reduction of integers, which the device computes together with the arithmetic
after it, writes a part of its result only at some shapes. Of a weight that is multiplied both as it is and transposed, or that
two kinds of operators read, one packed form is kept for both.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import openvino as ov
from openvino import opset13

#: Operators whose weights the device packs, and what is folded into a weight before.
_PACKING = frozenset(
    {"MatMul", "Convolution", "GroupConvolution", "ConvolutionBackpropData", "GroupConvolutionBackpropData"}
)
_FOLDED = frozenset({"Convert", "Reshape", "Squeeze", "Transpose", "Unsqueeze"})
_REDUCTIONS = frozenset({"ReduceMax", "ReduceMin", "ReduceSum", "ReduceProd", "ReduceMean"})


def avoid_faults(model: ov.Model) -> None:
    """Rewrite, in place, what the CPU device would get wrong."""
    for node in model.get_ordered_ops():
        kind = node.get_type_name()
        if kind == "Abs" and len(node.get_output_shape(0)) == 1 and node.input_value(0).get_node().get_type_name() == "Concat":
            _behind_a_reshape(node)
        elif kind in _REDUCTIONS and node.get_output_element_type(0).is_integral():
            _in_floats(node)
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
    _replace(node, opset13.reshape(opset13.abs(row), np.array(shape), False))


def _in_floats(node: ov.Node) -> None:
    """The device computes reductions of integers in float32 anyway."""
    dtype = node.get_output_element_type(0)
    reduction = getattr(opset13, f"reduce_{node.get_type_name().removeprefix('Reduce').lower()}")
    floats = opset13.convert(node.input_value(0), "f32")
    _replace(node, opset13.convert(reduction(floats, node.input_value(1), node.get_keep_dims()), dtype))


def _replace(node: ov.Node, new: ov.Node) -> None:
    new.set_friendly_name(node.get_friendly_name())
    for target in node.output(0).get_target_inputs():
        target.replace_source_output(new.output(0))
