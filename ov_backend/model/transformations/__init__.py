"""Rewrites of a bound OpenVINO model into the form that the CPU device computes fastest or most exactly.

The stored model is not rewritten, so that one entry of the store serves every device.
"""

from __future__ import annotations

import ov_backend.core.telemetry  # noqa: F401  # before OpenVINO

# isort: split
import openvino as ov

from ov_backend.core.devices import instructions_are_limited
from ov_backend.model.transformations.cpu_faults import avoid_faults
from ov_backend.model.transformations.multiply_by_one import remove_multiplications_by_one
from ov_backend.model.transformations.normalizations import decompose_group_norms, decompose_odd_normalizations
from ov_backend.model.transformations.shared_transposes import copy_shared_inputs


def apply(model: ov.Model, precision: str) -> None:
    """Rewrite a model with its weights bound, in place, for a device that computes in "f32", "bf16" or "f16"."""
    avoid_faults(model)
    remove_multiplications_by_one(model)
    decompose_group_norms(model, corrected=precision == "f32")
    if instructions_are_limited():
        decompose_odd_normalizations(model)
    copy_shared_inputs(model)
