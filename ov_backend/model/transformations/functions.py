"""Functions of one number, and quotients with a constant, that the CPU device (OpenVINO 2026.4) gets wrong."""

from __future__ import annotations

import math

import numpy as np
import openvino as ov
import torch
from openvino import opset13

from ov_backend.core.tensors import constant
from ov_backend.model.transformations.nodes import Constants, hidden, replace
from ov_backend.model.transformations.rule import Rule

#: Numbers of which a bfloat16 may not have all digits.
_WIDE = frozenset({"f16", "f32", "f64", "i16", "i32", "i64"})


def _is_computed(node: ov.Node, constants: Constants) -> bool:
    return node.output(0) not in constants


def exp_as_square(node: ov.Node, constants: Constants) -> None:
    """Square the exponential of the half, which is exact."""
    half = opset13.multiply(node.input_value(0), ov.op.Constant(node.get_output_element_type(0), ov.Shape([]), [0.5]))
    root = opset13.exp(half)
    replace(node, opset13.multiply(root, root))


def _is_read_alone(node: ov.Node, constants: Constants) -> bool:
    """Whether anything reads a value by itself, and not in a sum, as GELU does."""
    return any(target.get_node().get_type_name() != "Add" for target in node.output(0).get_target_inputs())


def erf_by_series(node: ov.Node, constants: Constants) -> None:
    """Compute the error function of a small x as 2 / sqrt(pi) (x - x^3 / 3)."""
    x, dtype = node.input_value(0), node.get_output_element_type(0)
    limit, first, third = (ov.op.Constant(dtype, ov.Shape([]), [n]) for n in (1e-4, 2 / math.pi**0.5, -2 / 3 / math.pi**0.5))
    square = opset13.multiply(x, x)
    series = opset13.multiply(x, opset13.add(first, opset13.multiply(third, square)))
    replace(node, opset13.select(opset13.less(square, limit), series, opset13.erf(x)))


def _is_truncated(conversion: ov.Node, constants: Constants) -> bool:
    source = conversion.input_value(0)
    is_constant = source.get_node().get_type_name() == "Constant" and source.get_element_type().to_string() in _WIDE
    return is_constant and conversion.get_output_element_type(0).to_string() == "bf16"


def round_constant(node: ov.Node, constants: Constants) -> None:
    """Convert a constant to bfloat16 as PyTorch does."""
    content = torch.from_numpy(node.input_value(0).get_node().get_tensor_view().data)
    replace(node, constant(content.to(torch.bfloat16), shared=False))


#: What may make another number of one whose last bit differs.
_ROUNDING = frozenset({"Ceiling", "Floor", "FloorMod", "Mod", "Round", "Sign"})
#: Operators that keep a value's numbers, or compute with each by itself.
_BY_ELEMENT = frozenset({
    "Abs", "Add", "Broadcast", "Clamp", "Concat", "Convert", "Divide", "Gather", "Maximum", "Minimum", "Multiply", "Negative",
    "Pad", "Power", "Relu", "Reshape", "Select", "Slice", "Split", "Sqrt", "Squeeze", "StridedSlice", "Subtract", "Tile",
    "Transpose", "Unsqueeze", "VariadicSplit",
})


def _has_a_reciprocal(node: ov.Node, constants: Constants) -> bool:
    """Whether a divisor is a constant by whose reciprocal one may multiply.

    A reciprocal may change the last bit, which decides the whole number that a quotient is rounded to.
    """
    if not _has_one_constant(node, constants) or _is_rounded(node):
        return False
    reciprocal = _reciprocal(node)
    return reciprocal is not None and bool((np.isfinite(reciprocal) & (np.abs(reciprocal) >= np.finfo(np.float32).tiny)).all())


def multiply_by_reciprocal(node: ov.Node, constants: Constants) -> None:
    """Multiply by the reciprocal of a constant, in place of a division."""
    replace(node, opset13.multiply(node.input_value(0), opset13.constant(_reciprocal(node))))


def _reciprocal(node: ov.Node) -> np.ndarray | None:
    """The reciprocal of a float32 division's constant; None for others."""
    divisor = node.input_value(1).get_node()
    while divisor.get_type_name() in ("Convert", "ConvertLike"):
        divisor = divisor.input_value(0).get_node()
    if divisor.get_type_name() != "Constant" or node.get_output_element_type(0).to_string() != "f32":
        return None
    with np.errstate(divide="ignore", over="ignore"):
        return np.divide(1, divisor.get_data(dtype=np.float32), dtype=np.float32)


def _has_one_constant(node: ov.Node, constants: Constants) -> bool:
    return (node.input_value(0) in constants) != (node.input_value(1) in constants)


def hide_constant(node: ov.Node, constants: Constants) -> None:
    """Have the device not see that the dividend or the divisor is constant: so it computes the quotient by itself."""
    side = int(node.input_value(1) in constants)
    node.input(side).replace_source_output(hidden(node.input_value(side), node.input_value(1 - side)).output(0))


def _is_rounded(node: ov.Node) -> bool:
    """Whether something may decide by the last bit of a value, or of what is computed of it element by element."""
    waiting, seen = [node], set[str]()
    while waiting:
        for target in waiting.pop().output(0).get_target_inputs():
            reader = target.get_node()
            if reader.get_type_name() in ("Result", "ShapeOf"):
                continue
            if reader.get_type_name() in _ROUNDING or not reader.get_output_element_type(0).is_real():
                return True
            if reader.get_name() not in seen and reader.get_type_name() in _BY_ELEMENT:
                seen.add(reader.get_name())
                waiting.append(reader)
    return False


RULES = (
    Rule(
        "a division by a constant that is computed together with a reduction or a product of matrices is wrong at some"
        " shapes",
        frozenset({"Divide"}),
        _has_a_reciprocal,
        multiply_by_reciprocal,
    ),
    Rule(
        "of a constant that is divided by a layer's result the result divided by the constant is made, and other"
        " divisions by a constant are wrong at some shapes too",
        frozenset({"Divide"}),
        _has_one_constant,
        hide_constant,
    ),
    Rule(
        "the exponential is infinite from 88.38 on; the largest number is that of 88.72",
        frozenset({"Exp"}),
        _is_computed,
        exp_as_square,
    ),
    Rule("the error function of a small number is 0", frozenset({"Erf"}), _is_read_alone, erf_by_series),
    Rule(
        "a constant that is converted to bfloat16 is truncated, not rounded",
        frozenset({"Convert"}),
        _is_truncated,
        round_constant,
    ),
)
