"""Whether the CPU multiplies 8-bit integers exactly, found out by a product that overflows where it does not.

A CPU without VNNI adds two products of 8 bits in 16 bits, and cuts the sum off at 32767.
"""

from __future__ import annotations

import ov_backend.telemetry  # noqa: F401  # before OpenVINO

# isort: split
import functools

import numpy as np
import openvino as ov
import openvino.opset13 as ops
import torch

from ov_backend import devices
from ov_backend.tensors import constant
from ov_backend.transformations.low_precision import Range, quantize

_SIDE = 64


@functools.lru_cache(maxsize=1)
def multiplies_8_bits_exactly() -> bool:
    """Whether a product of the largest 8-bit integers is right; False also where none is computed in 8 bits."""
    weights = {"weight": torch.ones(_SIDE, _SIDE)}
    weight = constant(weights["weight"], shared=False)
    weight.set_friendly_name("weight")
    x = ops.parameter([_SIDE, _SIDE], np.float32)
    model = ov.Model([ops.matmul(x, weight, transpose_a=False, transpose_b=True)], [x])
    quantize(model, weights, {"weight": Range(0.0, 1.0)})
    compiled = devices.core().compile_model(model, "CPU")
    result = compiled(np.ones((_SIDE, _SIDE), np.float32))[0]
    return bool(np.abs(result - _SIDE).max() < 1)
