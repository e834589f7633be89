"""Rewrites of a bound OpenVINO model into the form that the CPU device computes fastest or most exactly.

The stored graph stays as it was converted, so that one entry serves every device.
"""

from __future__ import annotations

import openvino as ov

from ov_backend.transformations.group_norm import spread_group_norms
from ov_backend.transformations.multiply_by_one import remove_multiplications_by_one
from ov_backend.transformations.timestep_angles import keep_angles_exact


def apply(model: ov.Model, precision: str) -> None:
    """Rewrite ``model`` in place.

    Args:
        model: with its weights bound.
        precision: that the device computes in, "f32", "bf16" or "f16".
    """
    if precision == "bf16":
        keep_angles_exact(model)
    remove_multiplications_by_one(model)
    spread_group_norms(model, corrected=precision == "f32")
