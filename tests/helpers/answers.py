"""Models and modules whose answers are what they should be, on the CPU device in f32."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import openvino as ov
import torch

from ov_backend import Settings
from ov_backend.model.transformations.cpu_faults import avoid_faults
from tests.helpers.small import Computing, engine_for


def answers(results: list[ov.Node], x: ov.Node, value: np.ndarray) -> list[np.ndarray]:
    """What a model of one input computes once the device's faults are avoided in it."""
    model = ov.Model(results, [x])
    avoid_faults(model)
    compiled = ov.Core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    found = compiled([value])
    return [found[i] for i in range(len(results))]


def assert_right(strict: Callable[..., Settings], function: Callable[..., Any], x: torch.Tensor) -> None:
    """A module, or a function, that returns one tensor or several answers as in PyTorch, and in OpenVINO."""
    module = function if isinstance(function, torch.nn.Module) else Computing(function)
    network = engine_for(strict(precision="f32"), module)
    with torch.no_grad():
        for got, expected in zip(network(x), module(x), strict=True):
            torch.testing.assert_close(got, expected, rtol=1e-3, atol=1e-4)
