"""Functions of one number that the CPU device (OpenVINO 2026.4) gets wrong."""

from __future__ import annotations

import math

import openvino as ov
import torch
from openvino import opset13

from ov_backend.core.tensors import constant
from ov_backend.model.transformations.nodes import Constants, replace
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


RULES = (
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
