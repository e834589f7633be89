"""Sums that the CPU device (OpenVINO 2026.4) adds up in bfloat16, computed in float32.

A sum of 256 ones and one more is 256 in bfloat16. All other sums, products and norms over an axis the device adds up in float32,
and rounds the result once.
"""

from __future__ import annotations

import openvino as ov
import torch
from openvino import opset13

from ov_backend.core.tensors import TO_OV
from ov_backend.model.transformations.nodes import Constants
from ov_backend.model.transformations.rule import Rule

_HALVES = tuple(TO_OV[dtype] for dtype in (torch.bfloat16, torch.float16))


def _adds_up_halves(node: ov.Node, constants: Constants) -> bool:
    only_moves = "Scatter" in node.get_type_name() and node.get_attributes().get("reduction", "none") == "none"
    return node.get_output_element_type(0) in _HALVES and not only_moves


def add_up_in_float32(node: ov.Node, constants: Constants) -> None:
    """Convert what is added up to float32, and the sum back."""
    dtype = node.get_output_element_type(0)
    readers = node.output(0).get_target_inputs()
    for port in node.inputs():
        if port.get_element_type() == dtype:
            port.replace_source_output(opset13.convert(port.get_source_output(), "f32").output(0))
    node.validate_and_infer_types()
    rounded = opset13.convert(node, dtype.to_string())
    for reader in readers:
        reader.replace_source_output(rounded.output(0))


RULES = (
    Rule(
        "a sum in bfloat16 is rounded at each step: a sum of 256 ones and one more is 256",
        frozenset({"Col2Im", "CumSum", "ScatterElementsUpdate", "ScatterNDUpdate"}),
        _adds_up_halves,
        add_up_in_float32,
    ),
)
