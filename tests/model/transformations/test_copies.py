"""The networks that people use are not slowed down by the copies that keep OpenVINO's faults away."""

from __future__ import annotations

from collections.abc import Callable

import openvino.opset13 as ops
import pytest
import torch

from ov_backend import Settings
from tests.helpers.small import engine_for
from tests.soundness.modules import build
from tests.soundness.real import REAL, missing

NAMES = (
    *("ldm UNet", "ldm VAE decoder", "ldm VAE encoder"),
    *("diffusers UNet of SD1.5", "diffusers UNet of SDXL", "diffusers UNet, plain attention", "diffusers AutoencoderKL"),
    *("diffusers ControlNet", "diffusers SD3 transformer"),
)


@pytest.mark.parametrize("name", NAMES)
def test_no_value_is_copied(strict: Callable[..., Settings], monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    assert name in REAL
    if missing(name):
        pytest.skip(f"needs {missing(name)}")
    copies, roll = [], ops.roll
    monkeypatch.setattr(ops, "roll", lambda *args, **kwargs: copies.append(args[0]) or roll(*args, **kwargs))
    case = build(name)
    with torch.no_grad(), case.context():
        network = engine_for(strict(precision="f32"), case.module)
        case.call(network)
    assert network.stats()["captures"] == 1
    assert copies == []
