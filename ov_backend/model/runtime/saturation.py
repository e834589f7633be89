"""Whether the CPU multiplies 8-bit integers exactly, found out by a product that overflows where it does not.

A CPU without VNNI adds two products of 8 bits in 16 bits, and cuts the sum off at 32767.
"""

from __future__ import annotations

import ov_backend.core.telemetry  # noqa: F401  # before OpenVINO

# isort: split
import functools

import numpy as np
import openvino as ov
import openvino.opset13 as ops
import torch

from ov_backend.core import devices
from ov_backend.core.errors import is_failure
from ov_backend.core.tensors import constant
from ov_backend.model.transformations.quantize import MARGIN, Range, quantize

_SIDE = 64


@functools.lru_cache(maxsize=1)
def multiplies_8_bits_exactly() -> bool:
    """Whether a product of the largest 8-bit integers is right; False also where OpenVINO has no such product."""
    weights = {"weight": torch.ones(_SIDE, _SIDE)}
    weight = constant(weights["weight"], shared=False)
    weight.set_friendly_name("weight")
    x = ops.parameter([_SIDE, _SIDE], np.float32)
    activation = ops.abs(x)  # a layer that reads an input is left out
    model = ov.Model([ops.matmul(activation, weight, transpose_a=False, transpose_b=True)], [x])
    assert quantize(model, weights, {"weight": Range(0.0, 1.0 / MARGIN)}), "the layer has another form"
    try:
        compiled = devices.core().compile_model(model, "CPU")
        result = compiled(np.ones((_SIDE, _SIDE), np.float32))[0]  # the largest value of the range
    except RuntimeError as error:
        if not is_failure(error):
            raise
        return False
    return bool(np.abs(result - _SIDE).max() < 1)
